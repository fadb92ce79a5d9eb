"""Figures of training: designs and curves.

Accuracies of pre-trained designs are bars, other measures points; a dashed line is the dense model
of equal active parameters.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from moe_lab.reports.figures.drawing import Drawing
from moe_lab.reports.figures.fit import LEAST_SPAN
from moe_lab.reports.figures.panels import panels, panels_by
from moe_lab.reports.figures.primitives import bars, curves
from moe_lab.reports.figures.style import GREY
from moe_lab.reports.papers.averages import averages
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import MEASURE
from moe_lab.reports.papers.metric_names import HEADLINE
from moe_lab.reports.papers.training_scores import NO_TASK, model_folder
from moe_lab.reports.papers.units import quantity
from moe_lab.results.model import RunResult
from moe_lab.results.stored_files import read_lines

DESIGN = "method.label"
DENSE = "dense"
COLUMNS = [
    "panel",
    "design",
    "series",
    "metric",
    "value",
    "low",
    "high",
    "std",
    "examples",
    "seeds",
    "published",
    "notes",
]
SHOWN = {"loss": "training loss", "difference": "difference to the first line"}
FIRST_STEPS = 0.2
"""The first share of a training, where the loss falls fast. The vertical axis does not cover it."""


def draw_designs(table: CellTable) -> Drawing:
    """Pre-trained designs, one panel per measure (MoE-Bench, Figure 2).

    Accuracies are bars and other measures points, with their 95% intervals, by granularity and by
    the other settings in which designs differ. If there are averages over tasks, the scores of
    single tasks are not shown.
    """
    experiment = table.experiment
    panel_axes = [MEASURE] if MEASURE in experiment.keys else []
    frame = table.frame(
        _design_cells(table), panel=panel_axes, design=[DESIGN], series=_series_axes(table)
    )
    for side in ("low", "high"):  # of a training with several seeds, over these
        frame[side] = frame[side].where(frame[side].notna(), frame[f"seed_{side}"])
    mixtures = frame[frame["design"] != DENSE]
    designs = list(mixtures["design"].unique())
    series = list(mixtures["series"].unique())
    chance = _chance(table)

    def draw(axis: Axes, name: str, rows: DataFrame) -> None:
        """The panel of a measure."""
        metric = rows.iloc[0]["metric"]
        is_rate = metric.startswith("acc")
        mixture_rows = rows[rows["design"] != DENSE]
        bars(axis, mixture_rows, "design", "series", order=designs, series=series, filled=is_rate)
        for dense in rows[rows["design"] == DENSE].itertuples():
            axis.axhline(dense.value, color="black", ls="--", lw=1, label="dense")
            if dense.low is not None:
                axis.axhspan(dense.low, dense.high, color="black", alpha=0.08, lw=0)
        if is_rate and chance is not None:
            axis.axhline(chance, color=GREY, ls=":", lw=1.2, label="chance")
        axis.set(title=name, ylabel=quantity(metric))

    columns = 2 if frame["panel"].nunique() in (2, 4) else 3
    return panels_by(frame[COLUMNS], "panel", draw, columns=columns, height=2.6)


def _design_cells(table: CellTable) -> list[TableCell]:
    """The numbers of trainings, then the averages over tasks; without averages the scores."""
    of_training = [cell for cell in table.cells if cell.of_training]
    average_cells = averages(table.experiment, table.cells)
    if average_cells:
        return [*of_training, *average_cells]
    return [*of_training, *(cell for cell in table.cells if not cell.of_training)]


def _series_axes(table: CellTable) -> list[str]:
    """The axes other than granularity in which the designs differ."""
    experiment = table.experiment
    axes = []
    for key in experiment.keys:
        if key not in (DESIGN, MEASURE, experiment.average):
            axes.append(key)
    mixtures = [cell for cell in table.cells if cell.coordinates[DESIGN] != DENSE]
    return replace(table, cells=mixtures).varied(axes)


def _chance(table: CellTable) -> float | None:
    """The mean accuracy of random answers over the tasks; None if that of one is not known."""
    tasks = set()
    for cell in table.cells:
        if cell.metric == HEADLINE:
            tasks.add(cell.coordinates.get("task", NO_TASK))
    known = table.experiment.chance
    if not tasks or not tasks <= known.keys():
        return None
    return fmean(known[task] for task in tasks)


def draw_training_curves(table: CellTable) -> Drawing:
    """The training loss of several designs (MoE-Bench, Figure 3).

    One column per setting, one line per granularity. The mean over seeds, and the least and the
    largest where there are several. A row is a line of the log with a training loss. `difference`
    is to the panel's first line at the same seed and step, missing where that has none: trainings
    of one seed read the same rows, so that it shows which loss falls faster.
    """
    experiment = table.experiment
    panel_axes = [key for key in experiment.columns if key not in (MEASURE, experiment.average)]
    # the measures of a training are cells with the same run
    by_run = {cell.run_id: cell for cell in table.cells if cell.results}
    rows = []
    for cell in by_run.values():
        panel = _panel_name(cell, panel_axes)
        line = ", ".join(cell.coordinates[key] for key in experiment.rows)
        for result in cell.results:
            place = {"panel": panel, "line": line, "seed": result.seed, "run_id": result.run_id}
            rows += [place | losses for losses in _logged_losses(result)]
    frame = DataFrame(rows, columns=["panel", "line", "seed", "run_id", "step", "loss"])

    place_columns = ["panel", "seed", "step"]
    is_first_line = frame["line"] == frame.groupby("panel")["line"].transform("first")
    first_lines = frame[is_first_line].drop_duplicates(place_columns).set_index(place_columns)
    frame = frame.join(first_lines["loss"].rename("difference"), on=place_columns)
    frame["difference"] = frame["loss"] - frame["difference"]
    return Drawing(frame.to_dict("records"), partial(_draw_curves, frame))


def _panel_name(cell: TableCell, axes: Sequence[str]) -> str:
    """The coordinates of a cell on some axes, numbers with the name of their key."""
    coordinates = {}
    for axis in axes:
        name = axis.rpartition(".")[2].replace("_", " ")
        coordinates[name] = cell.coordinates[axis]
    parts = []
    for name, value in coordinates.items():
        parts.append(f"{name}: {value}" if value.isdigit() else value)
    return ", ".join(parts)


def _logged_losses(result: RunResult) -> list[dict[str, Any]]:
    """`step` and `loss` of the lines of a training's log that have a training loss; empty if the
    model's folder or the log is gone."""
    folder = model_folder(result)
    if folder is None:
        return []
    losses = []
    for line in read_lines(folder / "log.jsonl") or []:
        if "loss" in line:
            losses.append({"step": line["step"], "loss": line["loss"]})
    return losses


def _draw_curves(frame: DataFrame, title: str) -> Figure:
    """The figure of `draw_training_curves`: losses above, differences below, a column for each
    setting."""
    late = frame[frame["step"] >= FIRST_STEPS * frame["step"].max()]
    steps = frame.groupby(["panel", "line", "step"], sort=False)
    settings = list(frame["panel"].unique())

    figure, axes = panels(
        2 * len(settings), columns=len(settings), height=2.3, sharex=True, sharey="row"
    )
    figure.suptitle(title)
    for axis, (column, setting) in zip(axes, product(SHOWN, settings), strict=True):
        # the band is from the least to the largest value over seeds
        means = steps[column].agg(value="mean", low="min", high="max").reset_index()
        curves(axis, means[means["panel"] == setting], "step", band="", ms=2)
        axis.set(
            title=f"{setting}\n{SHOWN[column]}", xlabel="optimizer step", ylabel="nats per token"
        )
        values = late[column].astype(float)
        span = values.max() - values.min()
        margin = max(0.06 * span, (LEAST_SPAN - span) / 2)
        axis.set_ylim(values.min() - margin, values.max() + margin)
        axis.label_outer()
    for axis in axes[: len(settings)]:
        axis.legend()  # each setting has lines of its own
    return figure
