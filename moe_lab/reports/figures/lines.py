"""A metric against a number of the method, one panel per metric, one line per model (MoE-Bench, Figure 8)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.style import COLOURS, MARKERS, RED, legend_below, panels, write_figure
from moe_lab.reports.papers.average import shown_cells
from moe_lab.reports.papers.cell import TableCell, published_of
from moe_lab.reports.papers.spec import MEASURE, Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROUTER_LR = "method.router_lr"


def write_lines(
    cells: Sequence[TableCell], experiment: Experiment, folder: Path, stem: str, title: str
) -> list[Path]:
    """Points with 95% intervals over documents, joined per line; the axis across is the experiment's first row key."""
    rows = line_rows(cells, experiment)
    return write_figure(lambda: _draw(rows, experiment.rows[0], title), rows, folder, stem) if rows else []


def line_rows(cells: Sequence[TableCell], experiment: Experiment) -> list[dict[str, Any]]:
    """One row per measured cell, by line and number: value, interval, and the paper's number."""
    across = experiment.rows[0]
    named = [key for key in experiment.keys if key not in (across, MEASURE, experiment.average)]
    rows = []
    for cell in shown_cells(experiment, cells):
        row, published = cell.row(), published_of(experiment, cell)
        if row is None or row.value is None:
            continue
        low, high = row.interval or (None, None)
        rows.append(
            {
                "measure": cell.coordinates.get(MEASURE, row.metric),
                "line": ", ".join(cell.coordinates[key] for key in named),
                "x": _number(cell, across),
                "value": row.value,
                "low": low,
                "high": high,
                "documents": row.n,
                "published": None if published is None else published.fraction,
                "marks": " ".join(row.marks),
            }
        )
    return sorted(rows, key=lambda row: row["x"])


def _number(cell: TableCell, key: str) -> float:
    """Where the cell stands; the routers' learning rate is that of all else where it is not given."""
    told = cell.coordinates[key]
    if told == "-" and key == ROUTER_LR:
        part = cell.parts[0] if cell.parts else cell
        return float(part.config.method.learning_rate)
    return float(told)


def _draw(rows: Sequence[dict[str, Any]], across: str, title: str) -> Figure:
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    figure, axes = panels(len(measures))
    figure.suptitle(title)
    for axis, measure in zip(axes, measures, strict=True):
        _draw_panel(axis, [row for row in rows if row["measure"] == measure])
        axis.set(title=measure, xlabel=across.rpartition(".")[2], ylabel=measure)
        if across == ROUTER_LR:
            axis.set_xscale("log")
    legend_below(figure, axes)
    return figure


def _draw_panel(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    lines = list(dict.fromkeys(row["line"] for row in rows))
    for line, colour, marker in zip(lines, COLOURS, MARKERS, strict=False):
        own = [row for row in rows if row["line"] == line]
        axis.plot(
            [row["x"] for row in own], [row["value"] for row in own], f"{marker}-", color=colour, label=line
        )
        for row in own:
            if row["low"] is not None:
                axis.plot([row["x"]] * 2, [row["low"], row["high"]], "-", color=colour, lw=0.9)
            if row["published"] is not None:
                axis.plot(row["x"], row["published"], "D", mfc="none", mec=RED, ms=5, label="published")
