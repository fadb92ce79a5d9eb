"""A forest plot: the scores of many settings, one panel per task (C3PO, Figures 1 and 3)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.reports.figures.fitting import widen_x
from moe_lab.reports.figures.quantity import quantity
from moe_lab.reports.figures.style import BLUE, GREY, ORANGE, RED, panel_per, write_figure
from moe_lab.reports.papers.average import averages
from moe_lab.reports.papers.cell_table import CellTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


COLUMNS = ["setting", "panel", "method", "metric", "value", "low", "high", "documents", "published", "marks"]


def write_forest(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """Points with 95% intervals over documents, a line at base."""
    rows = forest_rows(table)
    settings = list(rows["setting"].unique())
    options = {"height": 0.75 + 0.155 * len(settings), "sharey": True}
    draw = partial(_draw_panel, settings=settings)
    panels = rows.groupby("panel", sort=False)
    return write_figure(
        lambda: panel_per(list(panels), title, draw, **options), rows.to_dict("records"), folder, stem
    )


def forest_rows(table: CellTable) -> DataFrame:
    """COLUMNS of every measured cell and average."""
    experiment, cells = table.experiment, table.cells
    across = [key for key in experiment.keys if key not in experiment.rows]
    named = [key for key in experiment.rows if len({cell.coordinates[key] for cell in cells}) > 1]
    frame = table.frame([*cells, *averages(experiment, cells)])
    settings = ([cell.coordinates[key] for key in named or experiment.rows[:1]] for cell in frame["cell"])
    frame["setting"] = [", ".join(text for text in setting if text != "-") for setting in settings]
    frame["panel"] = [", ".join(cell.coordinates[key] for key in across) for cell in frame["cell"]]
    return frame[COLUMNS]


def _draw_panel(axis: Axes, panel: tuple[str, DataFrame], settings: Sequence[str]) -> None:
    name, rows = panel
    for row in rows.itertuples():
        height, upper = settings.index(row.setting), "upper-bound" in row.marks
        colour = GREY if row.method == "base" else ORANGE if upper else BLUE
        label = f"{row.method}, upper bound" if upper else row.method
        if row.low is not None:
            axis.plot([row.low, row.high], [height, height], "-", color=colour, lw=1.1)
        axis.plot(row.value, height, "o", color=colour, label=label)
        if row.published is not None:
            axis.plot(row.published, height, "D", mfc="none", mec=RED, ms=5, label="published")
    base = list(rows["value"][rows["method"] == "base"])
    if len(base) == 1:
        axis.axvline(base[0], color=GREY, ls=":", lw=1.1)
    counts = "/".join(dict.fromkeys(map(str, rows["documents"])))
    axis.set(
        title=f"{name} ({counts} documents)", xlabel=f"{quantity(rows.iloc[0]['metric'])}, 95% intervals"
    )
    axis.set_yticks(range(len(settings)), settings)
    axis.set_ylim(len(settings) - 0.4, -0.6)
    widen_x(axis)
