"""The expert metrics over a training, each scaled from its least to its largest value (MoE-Bench, Figure 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.metrics.correlations import blocks_of, labels, values_of
from moe_lab.reports.figures.style import COLOURS, MARKERS, legend_below, panels, write_figure
from moe_lab.reports.papers.cell import TableCell
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.experiment import MEASURE
from moe_lab.reports.papers.expert_scores import unit_of
from moe_lab.results.stored_files import read_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_training_metrics(lines: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """`expert_metrics.png` and `.csv` of the measurements in expert_metrics.jsonl; the CSV is not scaled."""
    rows = training_rows(lines)
    title = "Expert metrics while the model is trained"
    return write_figure(lambda: _draw({"": rows}, title), rows, folder, "expert_metrics")


def write_epochs(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """One panel for each training of the cells that has measurements."""
    trainings = {_name(cell): training_rows(lines) for cell in table.cells if (lines := _measurements(cell))}
    rows = [{"training": name, **row} for name, own in trainings.items() for row in own]
    return write_figure(lambda: _draw(trainings, title), rows, folder, stem)


def _name(cell: TableCell) -> str:
    """The name of a training: the cell's coordinates but for the metric."""
    return ", ".join(value for key, value in cell.coordinates.items() if key != MEASURE)


def _measurements(cell: TableCell) -> list[dict[str, Any]]:
    """The lines of expert_metrics.jsonl of the model that a cell's run evaluates."""
    trained = cell.results[0]["moe_lab"].get("finetune_freeze") if cell.results else None
    if trained is None or cell.folder is None:
        return []
    path = cell.folder.parent.parent / "models" / trained["model"] / "expert_metrics.jsonl"
    return read_lines(path) or []


def training_rows(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per measurement: step, epoch, the metrics and their intervals."""
    return [
        {"step": line["step"], "epoch": line["epoch"], **values_of(line), **_bounds(line)} for line in lines
    ]


def _bounds(line: dict[str, Any]) -> dict[str, float | None]:
    """Each metric's 95% interval."""
    bounds = {name: block.get("ci95") or [None, None] for name, block in blocks_of(line).items()}
    return {
        f"{name}_{side}": limits[number]
        for name, limits in bounds.items()
        for number, side in enumerate(("low", "high"))
    }


def _draw(trainings: Mapping[str, Sequence[dict[str, Any]]], title: str) -> Figure:
    figure, axes = panels(len(trainings), height=2.6)
    figure.suptitle(title)
    for axis, (name, rows) in zip(axes, trainings.items(), strict=True):
        _draw_training(axis, rows)
        axis.set_title(name)
    legend_below(figure, axes, columns=2)
    return figure


def _draw_training(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    from matplotlib.ticker import MaxNLocator

    epochs = [row["epoch"] for row in rows]
    for (name, label), colour, marker in zip(labels().items(), COLOURS, MARKERS, strict=False):
        values = [row[name] for row in rows]
        if None in values:
            continue
        low, high = min(values), max(values)
        heights = [(value - low) / (high - low) if high > low else 0.5 for value in values]
        ends = f"{label}: {values[0]:.3f} to {values[-1]:.3f} {unit_of(name)}"
        axis.plot(epochs, heights, color=colour, marker=marker, label=ends)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel="epoch", ylabel="normalized value")
