"""A metric against a number of the method, one panel per metric, one line per model (MoE-Bench, Figure 8)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.reports.figures.quantity import quantity
from moe_lab.reports.figures.style import COLOURS, MARKERS, RED, panel_per, write_figure
from moe_lab.reports.papers.average import shown_cells
from moe_lab.reports.papers.cell import TableCell
from moe_lab.reports.papers.cell_table import CellTable, coordinates
from moe_lab.reports.papers.experiment import MEASURE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

ROUTER_LR = "method.router_lr"


COLUMNS = ["measure", "metric", "line", "x", "value", "low", "high", "documents", "published", "marks"]


def write_lines(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """Points with 95% intervals over documents, joined per line; the axis across is the experiment's first row key."""
    rows = line_rows(table)
    draw = partial(_draw_panel, across=table.experiment.rows[0])
    measures = rows.groupby("measure", sort=False)
    return write_figure(lambda: panel_per(list(measures), title, draw), rows.to_dict("records"), folder, stem)


def line_rows(table: CellTable) -> DataFrame:
    """COLUMNS of every measured cell, by `x`: its place on the axis across."""
    experiment = table.experiment
    across = experiment.rows[0]
    named = [key for key in experiment.keys if key not in (across, MEASURE, experiment.average)]
    frame = table.frame(shown_cells(experiment, table.cells))
    frame[MEASURE] = frame["metric"]
    frame[MEASURE] = coordinates(frame, MEASURE)
    frame["line"] = [", ".join(cell.coordinates[key] for key in named) for cell in frame["cell"]]
    frame["x"] = [_number(cell, across) for cell in frame["cell"]]
    return frame[COLUMNS].sort_values("x", kind="stable")


def _number(cell: TableCell, key: str) -> float:
    """The cell's place on the axis; without a router_lr it is the learning rate of all parameters."""
    place = cell.coordinates[key]
    if place == "-" and key == ROUTER_LR:
        part = cell.parts[0] if cell.parts else cell
        return float(part.config.method.learning_rate)
    return float(place)


def _draw_panel(axis: Axes, panel: tuple[str, DataFrame], across: str) -> None:
    measure, rows = panel
    for (line, own), colour, marker in zip(rows.groupby("line", sort=False), COLOURS, MARKERS, strict=False):
        axis.plot(own["x"], own["value"], f"{marker}-", color=colour, label=line)
        for row in own.itertuples():
            if row.low is not None:
                axis.plot([row.x] * 2, [row.low, row.high], "-", color=colour, lw=0.9)
            if row.published is not None:
                axis.plot(row.x, row.published, "D", mfc="none", mec=RED, ms=5, label="published")
    axis.set(title=measure, xlabel=across.rpartition(".")[2], ylabel=quantity(rows.iloc[0]["metric"]))
    if across == ROUTER_LR:
        axis.set_xscale("log")
