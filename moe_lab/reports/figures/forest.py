"""Scores of many settings below each other, one panel per task (C3PO, Figures 1 and 3): a forest plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.style import BLUE, GREY, ORANGE, RED, legend_below, panels, write_figure
from moe_lab.reports.papers.average import averages
from moe_lab.reports.papers.cell import TableCell, published_of
from moe_lab.reports.papers.spec import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_forest(
    cells: Sequence[TableCell], experiment: Experiment, folder: Path, stem: str, title: str
) -> list[Path]:
    """Points with 95% intervals over documents, a line at base; cells without a result are left out."""
    rows = forest_rows(cells, experiment)
    return write_figure(lambda: _draw(rows, title), rows, folder, stem) if rows else []


def forest_rows(cells: Sequence[TableCell], experiment: Experiment) -> list[dict[str, Any]]:
    """One row per measured cell and average: its setting, panel, value, interval, and the paper's number."""
    across = [key for key in experiment.keys if key not in experiment.rows]
    named = [key for key in experiment.rows if len({cell.coordinates[key] for cell in cells}) > 1]
    rows = []
    for cell in [*cells, *averages(experiment, cells)]:
        row, published = cell.row(), published_of(experiment, cell)
        if row is None or row.value is None:
            continue
        setting = [cell.coordinates[key] for key in named or experiment.rows[:1]]
        low, high = row.interval or (None, None)
        rows.append(
            {
                "setting": ", ".join(text for text in setting if text != "-"),
                "panel": ", ".join(cell.coordinates[key] for key in across),
                "method": row.method,
                "metric": row.metric,
                "value": row.value,
                "low": low,
                "high": high,
                "documents": row.n,
                "published": None if published is None else published.fraction,
                "marks": " ".join(row.marks),
            }
        )
    return rows


def _draw(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    names = list(dict.fromkeys(row["panel"] for row in rows))
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    figure, axes = panels(len(names), height=0.75 + 0.155 * len(settings), sharey=True)
    figure.suptitle(title)
    for axis, name in zip(axes, names, strict=True):
        _draw_panel(axis, name, [row for row in rows if row["panel"] == name], settings)
    legend_below(figure, axes)
    return figure


def _draw_panel(axis: Axes, name: str, rows: Sequence[dict[str, Any]], settings: Sequence[str]) -> None:
    for row in rows:
        height, upper = settings.index(row["setting"]), "upper-bound" in row["marks"]
        colour = GREY if row["method"] == "base" else ORANGE if upper else BLUE
        label = f"{row['method']}, upper bound" if upper else row["method"]
        if row["low"] is not None:
            axis.plot([row["low"], row["high"]], [height, height], "-", color=colour, lw=1.1)
        axis.plot(row["value"], height, "o", color=colour, label=label)
        if row["published"] is not None:
            axis.plot(row["published"], height, "D", mfc="none", mec=RED, ms=5, label="published")
    base = [row["value"] for row in rows if row["method"] == "base"]
    if len(base) == 1:
        axis.axvline(base[0], color=GREY, ls=":", lw=1.1)
    counts = "/".join(dict.fromkeys(str(row["documents"]) for row in rows))
    axis.set(
        title=f"{name} ({counts} documents)", xlabel=f"{rows[0]['metric'].partition(',')[0]}, 95% intervals"
    )
    axis.set_yticks(range(len(settings)), settings)
    axis.set_ylim(len(settings) - 0.4, -0.6)
