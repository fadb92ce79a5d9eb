"""The common style of figures: size, colours for colour-blind readers, and saving with a CSV."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.csv_rows import write_rows
from moe_lab.reports.figures.fitting import fit, too_wide
from moe_lab.results.atomic import write_atomically, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 200
PAGE_WIDTH = 7.0
"""Inches between the margins of a page."""
MAX_COLUMNS = 3
"""Most panels side by side that are legible at page width."""

BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, "#56B4E9", "#000000")
"""Okabe and Ito's palette."""
GREY = "#767676"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

RC = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "figure.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-4, 6),
    "grid.color": "#E0E0E0",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "legend.frameon": False,
}


def write_figure(
    draw: Callable[[], Figure], rows: Sequence[dict[str, Any]], folder: Path, stem: str
) -> list[Path]:
    """Save `draw()` as `<stem>.png` and `rows` as `<stem>.csv`; returns both paths, none without rows.

    Raises ResultsError.
    """
    if not rows:
        return []
    import matplotlib

    png = folder / f"{stem}.png"
    with writing(png):
        folder.mkdir(parents=True, exist_ok=True)
    table = write_rows(rows, folder / f"{stem}.csv")
    with matplotlib.rc_context(RC):
        figure = draw()
        fit(figure)
        _save(figure, png)
    return [png, table]


def panels(
    count: int, height: float = 2.1, columns: int = MAX_COLUMNS, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A page-wide figure with `count` axes in rows of `columns`."""
    from matplotlib.figure import Figure

    columns = min(count, columns)
    lines = -(-count // columns)
    width = PAGE_WIDTH if columns > 1 else 0.72 * PAGE_WIDTH
    figure = Figure(figsize=(width, height * lines + 0.4), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, **options).ravel().tolist()
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def panel_per(items: Sequence[Any], title: str, draw: Callable[[Axes, Any], None], **options: Any) -> Figure:
    """One panel for each item, drawn by `draw(axes, item)`, and a legend for all. `options` are those of `panels`."""
    figure, axes = panels(len(items), **options)
    figure.suptitle(title)
    for axis, item in zip(axes, items, strict=True):
        draw(axis, item)
    legend_below(figure, axes)
    return figure


def legend_below(figure: Figure, axes: Sequence[Axes], columns: int = 4) -> None:
    """One legend below all axes, with every label once, in as many columns as fit."""
    entries: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    for count in range(min(columns, len(entries)), 0, -1):
        legend = figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=count)
        if count == 1 or not too_wide(legend, figure):
            return
        legend.remove()


def count_axis(axis: Axes, counts: Sequence[int], label: str) -> None:
    """A horizontal axis of counts that double, each with its number."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.minorticks_off()
    axis.set_xlabel(label)


def log_axis(axis: Axes) -> None:
    """A logarithmic vertical axis with plain numbers at 1, 2, 5, 10, ..."""
    from matplotlib.ticker import LogLocator

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()


def _save(figure: Figure, path: Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI, metadata={"Software": None})
    write_atomically(path, picture.getvalue())
