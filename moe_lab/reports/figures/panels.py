"""The panels of a figure, side by side or below each other, with one legend for all."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from moe_lab.reports.figures.drawing import Drawing
from moe_lab.reports.figures.fit import wrapped_label
from moe_lab.reports.figures.primitives import points
from moe_lab.reports.figures.style import PAGE_WIDTH

Panel = Callable[[Axes, Any, DataFrame], None]
"""Draws the panel of an item from its rows."""
MAX_COLUMNS = 3
"""Most panels side by side that are legible at page width."""
MOST_CONSTRAINED = 30
"""Most panels with a constrained layout, whose time grows with the square of the panels."""
LEGEND_CHARACTERS = 18
"""Characters of a legend per inch."""
LEGEND_LINE = 6
"""Characters that the line next to a label takes."""


def panels(
    count: int, height: float = 2.1, columns: int = MAX_COLUMNS, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` axes in rows of `columns`.

    It is page-wide, but for a single panel where several columns are allowed.
    """
    width = PAGE_WIDTH
    if count == 1 and columns > 1:
        width = 0.72 * PAGE_WIDTH
    columns = min(count, columns)
    lines = -(-count // columns)
    figure = Figure(figsize=(width, height * lines + 0.4), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, **options).ravel().tolist()
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def stacked_panels(height: float, ratios: Sequence[float], title: str) -> tuple[Figure, list[Axes]]:
    """A page-wide figure of `height` inches with panels below each other.

    The heights of the panels have these ratios.
    """
    layout: Literal["constrained", "tight"] = "constrained"
    if len(ratios) > MOST_CONSTRAINED:
        layout = "tight"
    figure = Figure(figsize=(PAGE_WIDTH, height), layout=layout)
    figure.suptitle(title)
    axes = figure.subplots(len(ratios), 1, squeeze=False, height_ratios=ratios)
    return figure, axes.ravel().tolist()


def panel_per(
    items: Sequence[tuple[Any, ...]], title: str, draw: Callable[..., None], **options: Any
) -> Figure:
    """One panel for each item, drawn by `draw(axes, *item)`, and a legend for all.

    `options` are those of `panels`.
    """
    figure, axes = panels(len(items), **options)
    figure.suptitle(title)
    for axis, item in zip(axes, items, strict=True):
        draw(axis, *item)
    legend_below(figure, axes)
    return figure


def panels_by(frame: DataFrame, by: str | list[str], draw: Panel, **options: Any) -> Drawing:
    """A figure with one panel for each value of the columns `by`.

    `options` are those of `panels`.
    """
    groups = list(frame.groupby(by, sort=False))

    def draw_all(title: str) -> Figure:
        return panel_per(groups, title, draw, **options)

    return Drawing(frame.to_dict("records"), draw_all)


def panels_of(
    items: Iterable[tuple[Any, list[dict[str, Any]]]], draw: Panel, title: str = "", **options: Any
) -> Drawing:
    """A figure with one panel for each item and its rows. `options` are those of `panels`."""
    framed_items = []
    all_rows = []
    for item, rows in items:
        frame = DataFrame(rows, dtype=object)
        framed_items.append((item, frame))
        all_rows += frame.to_dict("records")

    def draw_all(title: str) -> Figure:
        return panel_per(framed_items, title, draw, **options)

    return Drawing(all_rows, draw_all, title)


def panels_of_points(
    rows: DataFrame, name: str, look: Callable[[Any], dict[str, Any]], finish: Panel
) -> Drawing:
    """A figure of `points`, one panel for each value of the column `panel`.

    All panels have the same lines. `finish` adds titles and reference lines.
    """
    names = list(rows[name].unique())

    def draw(axis: Axes, panel: str, panel_rows: DataFrame) -> None:
        points(axis, panel_rows, name, look, names)
        finish(axis, panel, panel_rows)

    text_lines = sum(len(wrapped_label(name).split("\n")) for name in names)
    return panels_by(rows, "panel", draw, height=1.0 + 0.17 * text_lines, sharey=True)


def legend_below(figure: Figure, axes: Sequence[Axes], columns: int = 4) -> None:
    """One legend below all axes, with every label once, in as many columns as fit."""
    entries: dict[str, Artist] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)

    widths = sorted((len(label) + LEGEND_LINE for label in entries), reverse=True)
    room = LEGEND_CHARACTERS * figure.get_figwidth()
    # as many of the longest labels as fit side by side
    fitting = [width for width in accumulate(widths[:columns]) if width <= room]
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=max(1, len(fitting)),
    )
