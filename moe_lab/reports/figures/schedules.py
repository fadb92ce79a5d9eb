"""Scores by freezing schedule, one panel per column of the table (MoE-Bench, Figures 4, 5, 7 and 9).

As in the paper a schedule's colour is what its first half freezes, a dashed line is the mean of the schedules, and its
sweet point, nothing and then the routers (N→R), is set off.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.style import BLUE, GREEN, GREY, ORANGE, RED, legend_below, panels, write_figure
from moe_lab.reports.papers.average import shown_cells
from moe_lab.reports.papers.cell import TableCell, published_of
from moe_lab.reports.papers.expert_rows import EXPERT
from moe_lab.reports.papers.spec import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCHEDULE, ROUTER_LR = "method.schedule", "method.router_lr"
FIRST_HALF = {
    "N": ("nothing frozen first", BLUE),
    "E": ("experts frozen first", ORANGE),
    "R": ("routers frozen first", GREEN),
}
SWEET_POINT = "N→R"


def write_schedules(
    cells: Sequence[TableCell], experiment: Experiment, folder: Path, stem: str, title: str
) -> list[Path]:
    """Points with 95% intervals over documents; cells without a result are left out."""
    rows = schedule_rows(cells, experiment)
    return write_figure(lambda: _draw(rows, title), rows, folder, stem) if rows else []


def schedule_rows(cells: Sequence[TableCell], experiment: Experiment) -> list[dict[str, Any]]:
    """One row per cell that is measured: its schedule, panel, value, interval, and the paper's number."""
    listed = [key for key in experiment.rows if key not in (SCHEDULE, ROUTER_LR, "method")]
    several = [key for key in listed if len({cell.coordinates[key] for cell in cells}) > 1]
    rows = []
    for cell in shown_cells(experiment, cells):
        row, published = cell.row(), published_of(experiment, cell)
        if row is None or row.value is None:
            continue
        low, high = row.interval or (None, None)
        rows.append(
            {
                "panel": ", ".join(cell.coordinates[key] for key in [*several, *experiment.columns]),
                "schedule": schedule_label(cell.coordinates),
                "metric": row.metric,
                "value": row.value,
                "stderr": row.stderr,
                "low": low,
                "high": high,
                "documents": row.n,
                "published": None if published is None else published.fraction,
                "marks": " ".join(row.marks),
            }
        )
    return rows


def schedule_label(coordinates: dict[str, str]) -> str:
    """As the paper writes it: N→R for none-router, E→E for experts; the routers' learning rate, if it is another."""
    name = coordinates.get(SCHEDULE, "-")
    if name == "-":
        return "base"
    halves = [half[0].upper() for half in name.split("-")]
    rate = coordinates.get(ROUTER_LR, "-")
    label = "→".join(halves if len(halves) == 2 else halves * 2)
    return label if rate == "-" else f"{label}, router {float(rate):g}"


def _draw(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    names = list(dict.fromkeys(row["panel"] for row in rows))
    labels = list(dict.fromkeys(row["schedule"] for row in rows))
    figure, axes = panels(len(names), height=0.75 + 0.16 * len(labels), sharey=True)
    figure.suptitle(title)
    for axis, name in zip(axes, names, strict=True):
        _draw_panel(axis, [row for row in rows if row["panel"] == name], labels)
        axis.set_title(name)
    legend_below(figure, axes)
    return figure


def _draw_panel(axis: Axes, rows: Sequence[dict[str, Any]], labels: Sequence[str]) -> None:
    for row in rows:
        height = labels.index(row["schedule"])
        first, colour = FIRST_HALF.get(row["schedule"][0], ("base", GREY))
        if row["low"] is not None:
            axis.plot([row["low"], row["high"]], [height, height], "-", color=colour, lw=1.1)
        size = 7 if row["schedule"] == SWEET_POINT else 4
        axis.plot(row["value"], height, "o", color=colour, label=first, ms=size)
        if row["published"] is not None:
            axis.plot(row["published"], height, "D", mfc="none", mec=RED, ms=5, label="published")
    tuned = [row["value"] for row in rows if row["schedule"] != "base" and "," not in row["schedule"]]
    if tuned:
        axis.axvline(sum(tuned) / len(tuned), color=GREY, ls="--", lw=1, label="mean of the schedules")
    metric = rows[0]["metric"].partition(",")[0].removeprefix(EXPERT).replace("_", " ")
    axis.set_xlabel(f"{metric}, 95% intervals")
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.4, -0.6)
