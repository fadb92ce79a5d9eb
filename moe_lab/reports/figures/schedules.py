"""Scores by freezing schedule, one panel per column of the table (MoE-Bench, Figures 4, 5, 7 and 9).

As in the paper, a schedule's colour shows what its first half freezes, a dashed line is the mean of the schedules, and
the paper's sweet point (N→R: nothing, then the routers) has a larger point.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.reports.figures.fitting import widen_x
from moe_lab.reports.figures.quantity import quantity
from moe_lab.reports.figures.style import BLUE, GREEN, GREY, ORANGE, RED, panel_per, write_figure
from moe_lab.reports.papers.average import shown_cells
from moe_lab.reports.papers.cell_table import CellTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

SCHEDULE, ROUTER_LR = "method.schedule", "method.router_lr"
FIRST_HALF = {
    "N": ("nothing frozen first", BLUE),
    "E": ("experts frozen first", ORANGE),
    "R": ("routers frozen first", GREEN),
}
SWEET_POINT = "N→R"


COLUMNS = ["panel", "schedule", "metric", "value", "stderr", "low", "high", "documents", "published", "marks"]


def write_schedules(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """Points with 95% intervals over documents."""
    rows = schedule_rows(table)
    labels = list(rows["schedule"].unique())
    options = {"height": 0.9 + 0.16 * len(labels), "sharey": True}
    draw = partial(_draw_panel, labels=labels)
    panels = rows.groupby("panel", sort=False)
    return write_figure(
        lambda: panel_per(list(panels), title, draw, **options), rows.to_dict("records"), folder, stem
    )


def schedule_rows(table: CellTable) -> DataFrame:
    """COLUMNS of every measured cell."""
    experiment, cells = table.experiment, table.cells
    listed = [key for key in experiment.rows if key not in (SCHEDULE, ROUTER_LR, "method")]
    several = [key for key in listed if len({cell.coordinates[key] for cell in cells}) > 1]
    axes = [*several, *experiment.columns]
    frame = table.frame(shown_cells(experiment, cells))
    frame["panel"] = [", ".join(cell.coordinates[key] for key in axes) for cell in frame["cell"]]
    frame["schedule"] = [schedule_label(cell.coordinates) for cell in frame["cell"]]
    return frame[COLUMNS]


def schedule_label(coordinates: dict[str, str]) -> str:
    """The paper's name of a schedule: N→R for none-router, E→E for experts; then a learning rate of the routers."""
    name = coordinates.get(SCHEDULE, "-")
    if name == "-":
        return "base"
    halves = [half[0].upper() for half in name.split("-")]
    rate = coordinates.get(ROUTER_LR, "-")
    label = "→".join(halves if len(halves) == 2 else halves * 2)
    return label if rate == "-" else f"{label}, router {float(rate):g}"


def _draw_panel(axis: Axes, panel: tuple[str, DataFrame], labels: Sequence[str]) -> None:
    name, rows = panel
    for row in rows.itertuples():
        height = labels.index(row.schedule)
        first, colour = FIRST_HALF.get(row.schedule[0], ("base", GREY))
        if row.low is not None:
            axis.plot([row.low, row.high], [height, height], "-", color=colour, lw=1.1)
        size = 7 if row.schedule == SWEET_POINT else 4
        axis.plot(row.value, height, "o", color=colour, label=first, ms=size)
        if row.published is not None:
            axis.plot(row.published, height, "D", mfc="none", mec=RED, ms=5, label="published")
    tuned = [row.value for row in rows.itertuples() if row.schedule != "base" and "," not in row.schedule]
    if tuned:
        axis.axvline(sum(tuned) / len(tuned), color=GREY, ls="--", lw=1, label="mean of the schedules")
    axis.set(title=name, xlabel=f"{quantity(rows.iloc[0]['metric'])}\n95% intervals")
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    widen_x(axis)
