"""Figures of training: designs and curves."""

from dataclasses import replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from moe_lab.reports.figures.primitives import bars, curves, panels, panels_by
from moe_lab.reports.figures.style import GREY, LEAST_SPAN, Drawing
from moe_lab.reports.papers.averages import averages
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.experiment import MEASURE
from moe_lab.reports.papers.training_metrics import NO_TASK, model_folder
from moe_lab.reports.papers.units import quantity
from moe_lab.results.stored_files import read_lines

# Accuracies of pre-trained designs are bars, other measures points; a dashed line is the dense model of equal active
# parameters.

DESIGN = "method.label"
DENSE = "dense"
COLUMNS = ["panel", "design", "series", "metric", "value", "low", "high", "std", "examples", "seeds", "published",
           "notes"]  # fmt: skip


def draw_designs(table: CellTable) -> Drawing:
    """Pre-trained designs, one panel per measure (MoE-Bench, Figure 2). With several tasks only their averages.

    Bars and points with their 95% intervals, by granularity and by the other settings in which designs differ.
    """
    experiment, cells = table.experiment, table.cells
    of_training = [cell for cell in cells if cell.of_training]
    others = averages(experiment, cells) or [cell for cell in cells if not cell.of_training]
    # the axes other than granularity in which the designs differ
    moe = replace(table, cells=[cell for cell in cells if cell.coordinates[DESIGN] != DENSE])
    keys = moe.varied(
        [key for key in experiment.keys if key not in (DESIGN, MEASURE, experiment.average)]
    )
    panel = [MEASURE] if MEASURE in experiment.keys else []
    frame = table.frame([*of_training, *others], panel=panel, design=[DESIGN], series=keys)
    for side in ("low", "high"):  # of a training with several seeds, over these
        frame[side] = frame[side].where(frame[side].notna(), frame[f"seed_{side}"])
    own = frame[frame["design"] != DENSE]
    designs, series = list(own["design"].unique()), list(own["series"].unique())
    tasks = {cell.coordinates.get("task", NO_TASK) for cell in cells if cell.metric == "headline"}
    known = [experiment.chance[task] for task in tasks if task in experiment.chance]
    chance = fmean(known) if known and len(known) == len(tasks) else None

    def draw(axis: Axes, name: str, rows: DataFrame) -> None:
        metric = rows.iloc[0]["metric"]
        rate = metric.startswith("acc")
        own = rows[rows["design"] != DENSE]
        bars(axis, own, "design", "series", order=designs, series=series, filled=rate)
        for dense in rows[rows["design"] == DENSE].itertuples():
            axis.axhline(dense.value, color="black", ls="--", lw=1, label="dense")
            if dense.low is not None:
                axis.axhspan(dense.low, dense.high, color="black", alpha=0.08, lw=0)
        if rate and chance is not None:
            axis.axhline(chance, color=GREY, ls=":", lw=1.2, label="chance")
        axis.set(title=name, ylabel=quantity(metric))

    columns = 2 if frame["panel"].nunique() in (2, 4) else 3
    return panels_by(frame[COLUMNS], "panel", draw, columns=columns, height=2.6)


SHOWN = {"loss": "training loss", "difference": "difference to the first line"}
FIRST_STEPS = 0.2
"""The first share of a training, where the loss falls fast. The vertical axis does not cover it."""


def draw_training_curves(table: CellTable) -> Drawing:
    """The training loss of several designs, one column per setting, one line per granularity (MoE-Bench, Figure 3).

    The mean over seeds, and the least and the largest where there are several. A row is a line of the log with a
    training loss. `difference` is to the panel's first line at the same seed and step, missing where that has none:
    trainings of one seed read the same rows, so that it shows which loss falls faster.
    """
    experiment = table.experiment
    across = [key for key in experiment.columns if key not in (MEASURE, experiment.average)]
    rows: list[tuple[Any, ...]] = []
    # one for all measures
    for cell in {cell.run_id: cell for cell in table.cells if cell.results}.values():
        # the coordinates across, numbers with the name of their key
        values = {key.rpartition(".")[2].replace("_", " "): cell.coordinates[key] for key in across}
        panel = ", ".join(
            f"{key}: {value}" if value.isdigit() else value for key, value in values.items()
        )
        line = ", ".join(cell.coordinates[key] for key in experiment.rows)
        for result in cell.results:
            folder = model_folder(result)
            run = (panel, line, result.seed, result.run_id)
            logged = (folder and read_lines(folder / "log.jsonl")) or []
            rows += [(*run, one["step"], one["loss"]) for one in logged if "loss" in one]
    frame = DataFrame(rows, columns=["panel", "line", "seed", "run_id", "step", "loss"])
    place = ["panel", "seed", "step"]
    first = frame[frame["line"] == frame.groupby("panel")["line"].transform("first")]
    reference = first.drop_duplicates(place).set_index(place)["loss"].rename("difference")
    frame = frame.join(reference, on=place)
    frame["difference"] = frame["loss"] - frame["difference"]
    return Drawing(frame.to_dict("records"), partial(_curves, frame))


def _curves(frame: DataFrame, title: str) -> Figure:
    late = frame[frame["step"] >= FIRST_STEPS * frame["step"].max()]
    # the band is from the least to the largest value over seeds
    steps = frame.groupby(["panel", "line", "step"], sort=False)
    settings = list(frame["panel"].unique())

    figure, axes = panels(
        2 * len(settings), columns=len(settings), height=2.3, sharex=True, sharey="row"
    )
    figure.suptitle(title)
    for axis, (column, setting) in zip(axes, product(SHOWN, settings), strict=True):
        means = steps[column].agg(value="mean", low="min", high="max").reset_index()
        curves(axis, means[means["panel"] == setting], "step", band="", ms=2)
        values = late[column].astype(float)
        span = values.max() - values.min()
        margin = max(0.06 * span, (LEAST_SPAN - span) / 2)
        axis.set(
            title=f"{setting}\n{SHOWN[column]}", xlabel="optimizer step", ylabel="nats per token"
        )
        axis.set_ylim(values.min() - margin, values.max() + margin)
        axis.label_outer()
    for axis in axes[: len(settings)]:
        axis.legend()  # each setting has lines of its own
    return figure
