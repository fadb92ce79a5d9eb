"""Figures of scores along an axis: epochs, FLOPs, and a setting."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from pandas import DataFrame

from moe_lab.metrics.registry import labels, values_of
from moe_lab.reports.figures.drawing import Drawing
from moe_lab.reports.figures.panels import panels_by, panels_of
from moe_lab.reports.figures.primitives import curve, curves
from moe_lab.reports.figures.schedules import ROUTER_LR
from moe_lab.reports.figures.style import GREY, NUMBER_BOX, look_of, step_axis
from moe_lab.reports.papers.averages import shown_cells
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import MEASURE
from moe_lab.reports.papers.training_scores import model_folder
from moe_lab.reports.papers.units import quantity, unit_of
from moe_lab.results.model import BASE, RunResult
from moe_lab.results.stored_files import read_lines

FLOPS_COLUMNS = [
    "model",
    "task",
    "metric",
    "core_experts",
    "experts",
    "flops",
    "plain_flops",
    "value",
    "low",
    "high",
    "gain",
    "flat",
    "base",
    "examples",
]
LINES_COLUMNS = [
    "measure",
    "metric",
    "line",
    "x",
    "value",
    "low",
    "high",
    "examples",
    "published",
    "notes",
]


def draw_epochs(table: CellTable) -> Drawing:
    """The expert metrics over a training (MoE-Bench, Figure 6).

    Each is scaled from its least to its largest value. One panel for each training of the cells
    that has measurements.
    """
    trainings: dict[str, list[dict[str, Any]]] = {}
    for cell in table.cells:
        measurements = _measurements(cell)
        if measurements:
            # a training's metrics are cells of their own
            place = [value for key, value in cell.coordinates.items() if key != MEASURE]
            name = ", ".join(place)
            trainings[name] = [{"training": name, **row} for row in training_rows(measurements)]
    return panels_of(trainings.items(), _draw_training, height=2.6)


def _measurements(cell: TableCell) -> list[dict[str, Any]]:
    """The lines of the expert_metrics.jsonl of a cell's training; empty without one."""
    if not cell.results:
        return []
    folder = model_folder(cell.results[0])
    if folder is None:
        return []
    return read_lines(folder / "expert_metrics.jsonl") or []


def training_rows(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per measurement: step, epoch, the metrics and their intervals."""
    rows = []
    for line in lines:
        metrics = values_of(line)
        row = {"step": line["step"], "epoch": line["epoch"]}
        for name, metric in metrics.items():
            row[name] = metric.value
        for name, metric in metrics.items():
            low, high = metric.interval or (None, None)
            row[f"{name}_low"] = low
            row[f"{name}_high"] = high
        rows.append(row)
    return rows


def _draw_training(axis: Axes, training: str, rows: DataFrame) -> None:
    """The panel of a training: a curve for each metric that every row has."""
    for number, (key, label) in enumerate(labels().items()):
        if rows[key].isna().any():
            continue
        colour, marker = look_of(number)
        values = rows[key].astype(float)
        least = values.min()
        span = values.max() - least
        scaled = rows.assign(value=(values - least) / span if span > 0 else 0.5)
        ends = f"{label}: {values.iloc[0]:.3f} to {values.iloc[-1]:.3f} {unit_of(key)}"
        curve(axis, scaled, "epoch", colour=colour, style=f"{marker}-", label=ends)
    step_axis(axis, "epoch")
    axis.set(title=training, ylabel="normalized value")


def draw_flops(table: CellTable) -> Drawing:
    """Accuracy against FLOPs per question, by the number of core experts (C3PO, Figure 4).

    One panel per model and task. A row is base, or a cell of C3PO whose operations were counted, by
    core experts; base has 0. `flops` counts reading, optimizing and answering of a question,
    `plain_flops` reading and answering alone; `base` is the score of the base model on the same
    questions. `gain` is the difference to the row before: what the further experts add. `flat`: the
    95% interval has the accuracy of every larger number.
    """
    frame = table.frame([cell for cell in table.cells if _has_flops(cell)])
    results = [cell.results[0] for cell in frame["cell"]]
    frame["experts"] = [result.model.experts for result in results]
    frame["core_experts"] = [_core_experts(result) for result in results]
    frame["plain_flops"] = [result.report.get("flops_plain_per_sample") for result in results]
    frame = frame.sort_values(["model", "task", "core_experts"])
    groups = frame.groupby(["model", "task"], sort=False)

    # base reads and answers alone
    frame["plain_flops"] = groups["plain_flops"].transform("max")
    flops = []
    for cell, plain_flops in zip(frame["cell"], frame["plain_flops"], strict=True):
        flops.append(cell.results[0].report.get("flops_per_sample", plain_flops))
    frame["flops"] = flops
    frame["base"] = frame["other_value"].where(frame["core_experts"] > 0, frame["value"])
    frame["gain"] = groups["value"].diff()

    flat = []
    for _, group in groups:
        flat += [_is_flat(row, group) for row in group.itertuples()]
    frame["flat"] = flat
    return panels_by(frame[FLOPS_COLUMNS], ["model", "task"], _draw_flops, height=2.5)


def _has_flops(cell: TableCell) -> bool:
    """Whether a cell is base, or a cell of C3PO whose operations were counted."""
    if not cell.results:
        return False
    result = cell.results[0]
    return result.method.name == BASE or result.report.get("flops_per_sample") is not None


def _core_experts(result: RunResult) -> int | None:
    """The number of core experts: 0 of base, all experts where the method names no number."""
    if result.method.name == BASE:
        return 0
    core_experts: int | None = result.report["core_experts"]
    experts = result.model.experts
    if core_experts is None or experts is None:
        return experts
    return min(core_experts, experts)


def _is_flat(row: Any, group: DataFrame) -> bool:
    """Whether the interval of a row has the accuracy of every larger number of core experts."""
    if row.core_experts == 0:
        return False
    larger = group["value"][group["core_experts"] >= row.core_experts]
    return bool(larger.between(row.low, row.high).all())


def _draw_flops(axis: Axes, names: tuple[str, str], rows: DataFrame) -> None:
    """The panel of a model and a task: accuracy against GFLOPs, each point with its core
    experts."""
    costs = rows.assign(cost=rows["flops"] / 1e9)
    label = "C3PO, with its core experts (0: base model)"
    curve(axis, costs, "cost", label=label, band="95% interval")
    # cores below the model's top-k cost the same
    for cost, same_cost in costs.groupby(costs["cost"].map("{:.3g}".format)):
        axis.annotate(
            ", ".join(map(str, same_cost["core_experts"])),
            (float(cost), same_cost["value"].max()),
            textcoords="offset points",
            xytext=(0, 6),
            ha="center",
            fontsize=6.5,
            bbox=NUMBER_BOX,
        )
    first = rows.iloc[0]
    if first["base"] is not None:
        axis.axhline(first["base"], color=GREY, ls=":", lw=1.2, label="base model")
    axis.margins(x=0.08)
    axis.set(
        title=f"{', '.join(names)}\n({first['examples']} documents)",
        xlabel=f"GFLOPs per question\n(base: {first['plain_flops'] / 1e9:.3g})",
        ylabel=first["metric"].partition(",")[0],
    )


def draw_lines(table: CellTable) -> Drawing:
    """A metric against a number of the method (MoE-Bench, Figure 8).

    One panel per metric, one line per model. Points with 95% intervals over documents of every
    measured cell. `x` is the experiment's first row key.
    """
    experiment = table.experiment
    x_axis = experiment.rows[0]
    line_axes = []
    for key in experiment.keys:
        if key not in (x_axis, MEASURE, experiment.average):
            line_axes.append(key)
    measure_axes = [MEASURE] if MEASURE in experiment.keys else ["metric"]
    cells = shown_cells(experiment, table.cells)
    frame = table.frame(cells, measure=measure_axes, line=line_axes)
    frame["x"] = [_x(cell, x_axis) for cell in frame["cell"]]

    def draw(axis: Axes, measure: str, rows: DataFrame) -> None:
        curves(axis, rows, "x")
        axis.set(
            title=measure,
            xlabel=x_axis.rpartition(".")[2],
            ylabel=quantity(rows.iloc[0]["metric"]),
        )
        if x_axis == ROUTER_LR:
            axis.set_xscale("log")

    return panels_by(frame[LINES_COLUMNS].sort_values("x", kind="stable"), "measure", draw)


def _x(cell: TableCell, x_axis: str) -> float:
    """The coordinate of a cell on an axis of numbers."""
    value = cell.coordinates[x_axis]
    if x_axis == ROUTER_LR and value == "-":
        # without a router_lr it is the learning rate of all parameters
        measured_cell = cell.parts[0] if cell.parts else cell
        return float(measured_cell.config.method.learning_rate)
    return float(value)
