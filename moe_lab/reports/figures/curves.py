"""Figures of scores along an axis: epochs, FLOPs, a setting, and freezing schedules."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from pandas import DataFrame

from moe_lab.metrics.registry import labels, values_of
from moe_lab.reports.figures.primitives import curve, curves, panels_by, panels_of, panels_of_points
from moe_lab.reports.figures.style import (
    BLUE,
    GREEN,
    GREY,
    NUMBER_BOX,
    ORANGE,
    Drawing,
    look_of,
    step_axis,
)
from moe_lab.reports.papers.averages import shown_cells
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.experiment import MEASURE
from moe_lab.reports.papers.training_metrics import model_folder
from moe_lab.reports.papers.units import quantity, unit_of
from moe_lab.results.model import BASE
from moe_lab.results.stored_files import read_lines


def draw_epochs(table: CellTable) -> Drawing:
    """The expert metrics over a training, each scaled from its least to its largest value (MoE-Bench, Figure 6).

    One panel for each training of the cells that has measurements.
    """
    trainings: dict[str, list[dict[str, Any]]] = {}
    for cell in (cell for cell in table.cells if cell.results):
        if (own := model_folder(cell.results[0])) and (
            lines := read_lines(own / "expert_metrics.jsonl")
        ):
            # a training's metrics are cells of their own
            name = ", ".join(value for key, value in cell.coordinates.items() if key != MEASURE)
            trainings[name] = [{"training": name, **row} for row in training_rows(lines)]
    return panels_of(trainings.items(), _training, height=2.6)


def training_rows(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per measurement: step, epoch, the metrics and their intervals."""
    return [
        {"step": line["step"], "epoch": line["epoch"]}
        | {name: one.value for name, one in values_of(line).items()}
        | {
            f"{name}_{side}": limit
            for name, one in values_of(line).items()
            for side, limit in zip(("low", "high"), one.interval or (None, None), strict=True)
        }
        for line in lines
    ]


def _training(axis: Axes, training: str, rows: DataFrame) -> None:
    for number, (key, label) in enumerate(labels().items()):
        colour, marker = look_of(number)
        if rows[key].isna().any():
            continue
        values = rows[key].astype(float)
        low, high = values.min(), values.max()
        scaled = rows.assign(value=(values - low) / (high - low) if high > low else 0.5)
        ends = f"{label}: {values.iloc[0]:.3f} to {values.iloc[-1]:.3f} {unit_of(key)}"
        curve(axis, scaled, "epoch", colour=colour, style=f"{marker}-", label=ends)
    step_axis(axis, "epoch")
    axis.set(title=training, ylabel="normalized value")


FLOPS_COLUMNS = [
    *("model", "task", "metric", "core_experts", "experts", "flops", "plain_flops"),
    *("value", "low", "high", "gain", "flat", "base", "examples"),
]


def draw_flops(table: CellTable) -> Drawing:
    """Accuracy against FLOPs per question, by the number of core experts (C3PO, Figure 4): a panel per model and task.

    A row is base, or a cell of C3PO whose operations were counted, by core experts; base has 0. `flops` counts reading,
    optimizing and answering of a question, `plain_flops` reading and answering alone; `base` is the score of the base
    model on the same questions. `gain` is the difference to the row before: what the further experts add. `flat`:
    the 95% interval has the accuracy of every larger number.
    """
    counted = [
        cell
        for cell in table.cells
        if cell.results
        and (
            cell.results[0].method.name == BASE
            or cell.results[0].report.get("flops_per_sample") is not None
        )
    ]
    frame = table.frame(counted)
    results = [cell.results[0] for cell in frame["cell"]]
    frame["experts"] = [result.model.experts for result in results]
    cores = [
        0 if result.method.name == BASE else result.report["core_experts"] for result in results
    ]
    frame["core_experts"] = [
        all_ if core is None else min(core, all_)
        for core, all_ in zip(cores, frame["experts"], strict=True)
    ]
    frame["plain_flops"] = [result.report.get("flops_plain_per_sample") for result in results]
    frame = frame.sort_values(["model", "task", "core_experts"])
    groups = frame.groupby(["model", "task"], sort=False)
    frame["plain_flops"] = groups["plain_flops"].transform("max")  # base reads and answers alone
    frame["flops"] = [
        cell.results[0].report.get("flops_per_sample", plain)
        for cell, plain in zip(frame["cell"], frame["plain_flops"], strict=True)
    ]
    frame["base"] = frame["other_value"].where(frame["core_experts"] > 0, frame["value"])
    frame["gain"] = groups["value"].diff()
    frame["flat"] = [
        row.core_experts > 0
        and own["value"][own["core_experts"] >= row.core_experts].between(row.low, row.high).all()
        for _, own in groups
        for row in own.itertuples()
    ]
    return panels_by(frame[FLOPS_COLUMNS], ["model", "task"], _flops, height=2.5)


def _flops(axis: Axes, names: tuple[str, str], rows: DataFrame) -> None:
    costs = rows.assign(cost=rows["flops"] / 1e9)
    label = "C3PO, with its core experts (0: base model)"
    curve(axis, costs, "cost", label=label, band="95% interval")
    # cores below the model's top-k cost the same
    for cost, same in costs.groupby(costs["cost"].map("{:.3g}".format)):
        axis.annotate(
            ", ".join(map(str, same["core_experts"])), (float(cost), same["value"].max()),
            textcoords="offset points", xytext=(0, 6), ha="center", fontsize=6.5, bbox=NUMBER_BOX,
        )  # fmt: skip
    first = rows.iloc[0]
    if first["base"] is not None:
        axis.axhline(first["base"], color=GREY, ls=":", lw=1.2, label="base model")
    axis.margins(x=0.08)
    axis.set(
        title=f"{', '.join(names)}\n({first['examples']} documents)",
        xlabel=f"GFLOPs per question\n(base: {first['plain_flops'] / 1e9:.3g})",
        ylabel=first["metric"].partition(",")[0],
    )


ROUTER_LR = "method.router_lr"
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


def draw_lines(table: CellTable) -> Drawing:
    """A metric against a number of the method, one panel per metric, one line per model (MoE-Bench, Figure 8).

    Points with 95% intervals over documents of every measured cell. `x` is the experiment's first row key.
    """
    experiment = table.experiment
    across = experiment.rows[0]
    named = [key for key in experiment.keys if key not in (across, MEASURE, experiment.average)]
    measure = [MEASURE if MEASURE in experiment.keys else "metric"]
    frame = table.frame(shown_cells(experiment, table.cells), measure=measure, line=named)
    # without a router_lr it is the learning rate of all parameters
    frame["x"] = [
        float((cell.parts or [cell])[0].config.method.learning_rate)
        if (across, cell.coordinates[across]) == (ROUTER_LR, "-")
        else float(cell.coordinates[across])
        for cell in frame["cell"]
    ]

    def panel(axis: Axes, measure: str, rows: DataFrame) -> None:
        curves(axis, rows, "x")
        axis.set(
            title=measure, xlabel=across.rpartition(".")[2], ylabel=quantity(rows.iloc[0]["metric"])
        )
        if across == ROUTER_LR:
            axis.set_xscale("log")

    return panels_by(frame[LINES_COLUMNS].sort_values("x", kind="stable"), "measure", panel)


# Scores by freezing schedule, one panel per column of the table (MoE-Bench, Figures 4, 5, 7 and 9)
#
# As in the paper, a schedule's colour shows what its first half freezes, a dashed line is the mean of the schedules,
# and the paper's sweet point (N→R: nothing, then the routers) has a larger point.

SCHEDULE = "method.schedule"
FIRST_HALF = {
    "N": ("nothing frozen first", BLUE),
    "E": ("experts frozen first", ORANGE),
    "R": ("routers frozen first", GREEN),
}
SWEET_POINT = "N→R"


def draw_schedules(table: CellTable) -> Drawing:
    """Points with 95% intervals over documents; every measured cell."""
    experiment = table.experiment
    listed = [key for key in experiment.rows if key not in (SCHEDULE, ROUTER_LR, "method")]
    axes = [*table.varied(listed), *experiment.columns]
    frame = table.frame(shown_cells(experiment, table.cells), panel=axes)
    frame["schedule"] = [schedule_label(cell.coordinates) for cell in frame["cell"]]

    def look(row: Any) -> dict[str, Any]:
        first, colour = FIRST_HALF.get(row.schedule[0], ("base", GREY))
        return {"color": colour, "label": first, "ms": 7 if row.schedule == SWEET_POINT else 4}

    def finish(axis: Axes, name: str, rows: DataFrame) -> None:
        tuned = [
            row.value
            for row in rows.itertuples()
            if row.schedule != "base" and "," not in row.schedule
        ]
        if tuned:
            axis.axvline(
                sum(tuned) / len(tuned), color=GREY, ls="--", lw=1, label="mean of the schedules"
            )
        axis.set(title=name, xlabel=f"{quantity(rows.iloc[0]['metric'])}\n95% intervals")

    columns = ["panel", "schedule", "metric", "value", "stderr", "low", "high"]
    columns += ["examples", "published", "notes"]
    return panels_of_points(frame[columns], "schedule", look, finish)


def schedule_label(coordinates: dict[str, str]) -> str:
    """The paper's name of a schedule: N→R for none-router, E→E for experts; then a learning rate of the routers."""
    name = coordinates.get(SCHEDULE, "-")
    if name == "-":
        return "base"
    halves = [half[0].upper() for half in name.split("-")]
    rate = coordinates.get(ROUTER_LR, "-")
    label = "→".join(halves if len(halves) == 2 else halves * 2)
    return label if rate == "-" else f"{label}, router {float(rate):g}"
