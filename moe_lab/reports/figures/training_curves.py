"""The training loss of several designs, one panel per setting, one line per granularity (MoE-Bench, Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.style import COLOURS, panel_per, write_figure
from moe_lab.reports.papers.cell import TableCell
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.experiment import MEASURE, Experiment
from moe_lab.results.stored_files import read_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

FIRST_STEPS = 0.15
"""The share of a training whose loss falls so fast that the scale leaves it out."""


def write_training_curves(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """The mean over seeds, and the least and the largest where there are several."""
    rows = curve_rows(table)
    if not rows:
        return []
    from pandas import DataFrame

    frame = DataFrame(rows)
    late = frame[frame["step"] >= FIRST_STEPS * frame["step"].max()]["loss"]
    margin = 0.05 * (late.max() - late.min())
    draw = partial(_draw_panel, limits=(late.min() - margin, late.max() + margin))
    groups = list(frame.groupby("panel", sort=False))
    options: dict[str, Any] = {"columns": 2, "height": 2.5, "sharey": True}
    return write_figure(lambda: panel_per(groups, title, draw, **options), rows, folder, stem)


def curve_rows(table: CellTable) -> list[dict[str, Any]]:
    """One row per line of the log with a training loss: panel, line, seed, step, loss, run_id."""
    experiment = table.experiment
    rows: list[dict[str, Any]] = []
    for cell in _distinct(table.cells):
        panel, line = _panel(experiment, cell), ", ".join(cell.coordinates[key] for key in experiment.rows)
        for results in cell.results:
            block = results["moe_lab"]
            place = {"panel": panel, "line": line, "seed": block.get("seed"), "run_id": block["run_id"]}
            rows += [
                place | {"step": each["step"], "loss": each["loss"]}
                for each in _log(cell, block)
                if "loss" in each
            ]
    return rows


def _distinct(cells: Sequence[TableCell]) -> list[TableCell]:
    """The cells of one measure."""
    return list({cell.run_id: cell for cell in cells if cell.results}.values())


def _panel(experiment: Experiment, cell: TableCell) -> str:
    """The setting: the coordinates across, numbers with the name of their key."""
    across = [key for key in experiment.columns if key not in (MEASURE, experiment.average)]
    values = {key.rpartition(".")[2]: cell.coordinates[key] for key in across}
    return ", ".join(f"{key}={value}" if value.isdigit() else value for key, value in values.items())


def _log(cell: TableCell, block: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of log.jsonl of the model that a run evaluates."""
    trained = block.get("pretrain")
    if trained is None or cell.folder is None:
        return []
    return read_lines(cell.folder.parent.parent / "models" / trained["model"] / "log.jsonl") or []


def _draw_panel(axis: Axes, panel: tuple[str, DataFrame], limits: tuple[float, float]) -> None:
    name, rows = panel
    for (_, own), colour in zip(rows.groupby("line", sort=False), COLOURS, strict=False):
        loss = own.groupby("step")["loss"].agg(["mean", "min", "max"])
        axis.plot(loss.index, loss["mean"], color=colour, label=own["line"].iloc[0])
        if own["seed"].nunique() > 1:
            axis.fill_between(loss.index, loss["min"], loss["max"], color=colour, alpha=0.2, lw=0)
    axis.set(title=name, xlabel="optimizer step", ylabel="training loss, nats per token", ylim=limits)
