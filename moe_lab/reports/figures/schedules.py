"""Scores by freezing schedule (MoE-Bench, Figures 4, 5, 7 and 9).

There is one panel per column of the table. As in the paper, a schedule's colour shows what its
first half freezes, a dashed line is the mean of the schedules, and the paper's sweet point (N→R:
nothing, then the routers) has a larger point.
"""

from typing import Any

from matplotlib.axes import Axes
from pandas import DataFrame

from moe_lab.reports.figures.drawing import Drawing
from moe_lab.reports.figures.panels import panels_of_points
from moe_lab.reports.figures.style import BLUE, GREEN, GREY, ORANGE
from moe_lab.reports.papers.averages import shown_cells
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.units import quantity

ROUTER_LR = "method.router_lr"
SCHEDULE = "method.schedule"
FIRST_HALF = {
    "N": ("nothing frozen first", BLUE),
    "E": ("experts frozen first", ORANGE),
    "R": ("routers frozen first", GREEN),
}
"""Label and colour by the first letter of a schedule's name."""
SWEET_POINT = "N→R"
SCHEDULE_COLUMNS = [
    "panel",
    "schedule",
    "metric",
    "value",
    "stderr",
    "low",
    "high",
    "examples",
    "published",
    "notes",
]


def draw_schedules(table: CellTable) -> Drawing:
    """Points with 95% intervals over documents; every measured cell."""
    experiment = table.experiment
    row_axes = [key for key in experiment.rows if key not in (SCHEDULE, ROUTER_LR, "method")]
    panel_axes = [*table.varied(row_axes), *experiment.columns]
    frame = table.frame(shown_cells(experiment, table.cells), panel=panel_axes)
    frame["schedule"] = [schedule_label(cell.coordinates) for cell in frame["cell"]]
    return panels_of_points(frame[SCHEDULE_COLUMNS], "schedule", _look, _finish)


def _look(row: Any) -> dict[str, Any]:
    """Colour, label and size of a point, by its schedule."""
    label, colour = FIRST_HALF.get(row.schedule[0], ("base", GREY))
    size = 7 if row.schedule == SWEET_POINT else 4
    return {"color": colour, "label": label, "ms": size}


def _finish(axis: Axes, name: str, rows: DataFrame) -> None:
    """The mean of the schedules as a line, and the titles."""
    values = []
    for row in rows.itertuples():
        has_own_rate = "," in row.schedule
        if row.schedule != "base" and not has_own_rate:
            values.append(row.value)
    if values:
        mean = sum(values) / len(values)
        axis.axvline(mean, color=GREY, ls="--", lw=1, label="mean of the schedules")
    axis.set(title=name, xlabel=f"{quantity(rows.iloc[0]['metric'])}\n95% intervals")


def schedule_label(coordinates: dict[str, str]) -> str:
    """The paper's name of a schedule: N→R for none-router, E→E for experts; "base" without one.

    A learning rate of the routers follows: "N→R, router 1e-05".
    """
    schedule = coordinates.get(SCHEDULE, "-")
    if schedule == "-":
        return "base"
    halves = [half[0].upper() for half in schedule.split("-")]
    if len(halves) != 2:
        halves = halves * 2
    label = "→".join(halves)
    rate = coordinates.get(ROUTER_LR, "-")
    if rate == "-":
        return label
    return f"{label}, router {float(rate):g}"
