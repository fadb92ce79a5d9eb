"""The training loss of several designs, one column per setting, one line per granularity (MoE-Bench, Figure 3).

Above the loss, below its difference to the setting's first line: trainings of one seed read the same rows, so that the
difference shows which falls faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.fitting import LEAST_SPAN
from moe_lab.reports.figures.style import COLOURS, panels, write_figure
from moe_lab.reports.papers.cell import TableCell
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.experiment import MEASURE, Experiment
from moe_lab.results.stored_files import read_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame, Series

FIRST_STEPS = 0.2
"""The share of a training that the scale of the loss leaves out: there it falls too fast."""


def write_training_curves(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """The mean over seeds, and the least and the largest where there are several."""
    rows = curve_rows(table)
    return write_figure(lambda: _draw(rows, title), rows, folder, stem)


def curve_rows(table: CellTable) -> list[dict[str, Any]]:
    """One row per line of the log with a training loss: panel, line, seed, run_id, step, loss, difference."""
    experiment = table.experiment
    rows: list[dict[str, Any]] = []
    first: dict[str, str] = {}
    for cell in {cell.run_id: cell for cell in table.cells if cell.results}.values():  # one for all measures
        panel, line = _panel(experiment, cell), ", ".join(cell.coordinates[key] for key in experiment.rows)
        for results in cell.results:
            block = results["moe_lab"]
            place = {"panel": panel, "line": line, "seed": block.get("seed"), "run_id": block["run_id"]}
            own = [place | {key: each[key] for key in ("step", "loss")} for each in _log(cell, block)]
            if own:
                first.setdefault(panel, line)
            rows += own
    reference = {_at(row): row["loss"] for row in rows if row["line"] == first[row["panel"]]}
    return [
        row | {"difference": row["loss"] - reference[_at(row)] if _at(row) in reference else None}
        for row in rows
    ]


def _at(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["panel"], row["seed"], row["step"]


def _panel(experiment: Experiment, cell: TableCell) -> str:
    """The setting: the coordinates across, numbers with the name of their key."""
    across = [key for key in experiment.columns if key not in (MEASURE, experiment.average)]
    values = {key.rpartition(".")[2].replace("_", " "): cell.coordinates[key] for key in across}
    return ", ".join(f"{key}: {value}" if value.isdigit() else value for key, value in values.items())


def _log(cell: TableCell, block: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of log.jsonl with a training loss, of the model that a run evaluates."""
    trained = block.get("pretrain")
    if trained is None or cell.folder is None:
        return []
    lines = read_lines(cell.folder.parent.parent / "models" / trained["model"] / "log.jsonl") or []
    return [line for line in lines if "loss" in line]


def _draw(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    from pandas import DataFrame

    frame = DataFrame(rows)
    late = frame[frame["step"] >= FIRST_STEPS * frame["step"].max()]
    settings = list(frame.groupby("panel", sort=False))
    figure, axes = panels(2 * len(settings), columns=len(settings), height=2.3, sharex=True, sharey="row")
    figure.suptitle(title)
    for above, below, (name, own) in zip(axes, axes[len(settings) :], settings, strict=False):
        _draw_lines(above, own, "loss")
        above.set(title=name, ylim=_limits(late["loss"]))
        above.legend()
        _draw_lines(below, own, "difference")
        below.set(xlabel="optimizer step", ylim=_limits(late["difference"].astype(float)))
    axes[0].set_ylabel("training loss, nats per token")
    axes[len(settings)].set_ylabel("difference to the first line,\nnats per token")
    return figure


def _draw_lines(axis: Axes, rows: DataFrame, column: str) -> None:
    for (line, own), colour in zip(rows.groupby("line", sort=False), COLOURS, strict=False):
        drawn = own.dropna(subset=[column]).astype({column: float}).groupby("step")[column]
        axis.plot(drawn.mean(), color=colour, label=line, marker="o", ms=2)
        if own["seed"].nunique() > 1:
            axis.fill_between(drawn.min().index, drawn.min(), drawn.max(), color=colour, alpha=0.2, lw=0)


def _limits(values: Series) -> tuple[float, float]:
    span = values.max() - values.min()
    margin = max(0.06 * span, (LEAST_SPAN - span) / 2)
    return values.min() - margin, values.max() + margin
