"""Figures of cost: overhead by n, equivalent model size, and quality against cost.

The first two are Figures 4 and 5 of RoE.
"""

from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from moe_lab.reports.figures.drawing import Drawing
from moe_lab.reports.figures.panels import legend_below, panel_per, panels, panels_by
from moe_lab.reports.figures.primitives import curve, curves
from moe_lab.reports.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    count_axis,
    log_axis,
    look_of,
)
from moe_lab.reports.papers.cell_table import CellTable, varied_label
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.units import quantity
from moe_lab.results.model import BASE, RunResult

QUANTITIES = {
    "seconds_per_token": "time per generated token",
    "memory_bytes": "peak memory",
    "watts": "power",
}
"""Quantities relative to n=1, with their labels. Throughput is the inverse of the first one."""
CACHE_LABELS = {"clean": "clean cache", "standard": "standard cache", "none": "no cache"}
COSTS = {"milliseconds_per_token": "time per generated token", "mebibytes": "memory"}
"""Costs of a larger model, with their labels."""
QUALITY_COLUMNS = [
    "task",
    "label",
    "metric",
    "lower_is_better",
    "value",
    "difference",
    "low",
    "high",
    "p_holm",
    "significant",
    "work",
    "seconds",
    "seeds",
    "examples",
]


def draw_overhead(table: CellTable) -> Drawing:
    """Memory, power and time of RoE by the number of routing samples n (RoE, Figure 4).

    One panel per quantity; one line per cache and temperature. A row is a cell that generated text.
    `memory_bytes` is the peak of a CUDA device; elsewhere the weights and the peak memory that
    answering adds to the process. `watts` is energy over time; None without a meter. Relative
    values are None where there is no n=1.
    """
    rows = []
    for cell in table.cells:
        row = _overhead_row(cell.results[0]) if cell.results else None
        if row is not None:
            rows.append(row)

    single: dict[str, Any] = next((row for row in rows if row["n"] == 1), {})
    for row in rows:
        for name in (*QUANTITIES, "tokens_per_second"):
            row[f"relative_{name}"] = _ratio(row[name], single.get(name))
    rows.sort(key=lambda row: (row["temperature"] != "0", row["cache"], row["n"]))
    return Drawing(rows, partial(_draw_overhead, rows))


def _overhead_row(result: RunResult) -> dict[str, Any] | None:
    """What a run cost; None of a run that generated no text."""
    cost = result.cost
    tokens = cost.tokens_out
    seconds = cost.wall_seconds
    if not tokens or not seconds:
        return None
    return {
        "model": result.model.name,
        "task": ",".join(result.task.names),
        "documents": result.num_documents,
        "device": cost.device,
        "cache": result.report["cache"],
        "temperature": "tuned" if any(result.report["temperatures"]) else "0",
        "n": result.report["n"],
        "tokens_out": tokens,
        "seconds_per_token": seconds / tokens,
        "tokens_per_second": tokens / seconds,
        "memory_bytes": _memory_bytes(result),
        "energy_joules": cost.energy_joules,
        "watts": None if cost.energy_joules is None else cost.energy_joules / seconds,
        "run_id": result.run_id,
    }


def _memory_bytes(result: RunResult) -> float | None:
    """The peak memory of a CUDA device.

    Elsewhere the weights and what answering adds to the process at its peak; None if one of the two
    was not measured.
    """
    cost = result.cost
    if str(cost.device).startswith("cuda"):
        return cost.peak_memory_bytes
    if cost.weight_bytes is None or cost.peak_working_bytes is None:
        return None
    return cost.weight_bytes + cost.peak_working_bytes


def _ratio(value: float | None, reference: float | None) -> float | None:
    """The value divided by the reference; None if one is missing, or the reference is 0."""
    if value is None or not reference:
        return None
    return value / reference


def _draw_overhead(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    """The figure of `draw_overhead` from its rows, at least one."""
    first = rows[0]
    heading = (
        f"{title}\n{first['model']} on {first['device']}, {first['task']}, {first['documents']} "
        "documents, batch 1, one run per point"
    )
    frame = DataFrame(rows, dtype=object)
    frame["line"] = frame["cache"].map(CACHE_LABELS) + ", temperature " + frame["temperature"]
    items = [(label, f"relative_{name}", frame) for name, label in QUANTITIES.items()]
    return panel_per(items, heading, _draw_quantity, height=2.5)


def _draw_quantity(axis: Axes, label: str, column: str, frame: DataFrame) -> None:
    """The panel of a quantity, relative to n=1; an empty one if it was not measured."""
    if frame[column].isna().all():  # power needs a meter
        axis.set(title=f"{label}: not measured", xticks=[], yticks=[])
        return
    curves(axis, frame, "n", column)
    count_axis(axis, sorted(frame["n"].unique()), "n (routing samples per token)")
    if frame[column].max() > 8:
        log_axis(axis)
    axis.set(title=label, ylabel="relative to n=1")


def draw_equivalent(measurements: Sequence[dict[str, Any]]) -> Drawing:
    """Equivalent model size of RoE, and the cost of a plain model of that size (RoE, Figure 5).

    Three panels against n: equivalent size, latency, memory; one row per n, as
    `moe_lab/runs/experiments/measurement.py` measures them.
    """
    return Drawing(measurements, partial(_draw_equivalent, measurements))


def _draw_equivalent(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    """The figure of `draw_equivalent` from its rows, at least one."""
    frame = DataFrame(rows, dtype=object)
    first = rows[0]
    figure, axes = panels(3, height=2.5)
    figure.suptitle(
        f"{title}\n{first['model']} on {first['device']}; {first['task']}, {first['documents']} "
        f"test documents; {first['new_tokens']} new tokens, batch 1"
    )
    _draw_sizes(axes[0], frame)
    method = _measured_method(first)
    for axis, (cost, label) in zip(axes[1:], COSTS.items(), strict=True):
        _draw_relative_cost(axis, frame, cost, method)
        axis.set(title=label, ylabel="relative to base")
    for axis in axes:
        axis.axhline(1, color=GREY, ls="--", lw=1.2, label="base model")
        count_axis(axis, list(frame["n"]), "n (routing samples per token)")
    legend_below(figure, axes, columns=3)
    return figure


def _draw_sizes(axis: Axes, frame: DataFrame) -> None:
    """The equivalent size of RoE, and of calibration if it was measured."""
    sizes = frame.assign(low=frame["size_ratio_low"], high=frame["size_ratio_high"])
    curve(axis, sizes, "n", "size_ratio", label="RoE")
    if frame["calibrated_size_ratio"].notna().all():
        label = "calibration (one logit scale, free)"
        curve(axis, frame, "n", "calibrated_size_ratio", colour=GREEN, style=":", label=label)
    axis.set(title="equivalent size (95% interval)", ylabel="equivalent size / own size")


def _measured_method(row: dict[str, Any]) -> str:
    """The name of the method that was measured next to the base model and the equivalent one.

    The columns `<name>_mebibytes` have the three names.
    """
    suffix = "_mebibytes"
    names = {key.removesuffix(suffix) for key in row if key.endswith(suffix)}
    [method] = names - {"base", "equivalent"}
    return method


def _draw_relative_cost(axis: Axes, frame: DataFrame, cost: str, method: str) -> None:
    """The cost of the method and of the larger model, relative to the base model.

    All were measured in turns.
    """
    plain = "plain model of equivalent size (more layers, random weights)"
    base_cost = frame[f"base_{cost}"]
    of_method = frame.assign(value=frame[f"{method}_{cost}"] / base_cost)
    curve(axis, of_method, "n", colour=BLUE, style="o-", label="RoE")
    of_plain = frame.assign(value=frame[f"equivalent_{cost}"] / base_cost)
    curve(axis, of_plain, "n", colour=ORANGE, style="s-", label=plain)


def draw_quality_cost(table: CellTable) -> Drawing:
    """Quality against cost: the difference to the base model, by the expert work of an answer.

    One panel per task.

    A point with its 95% interval per method, filled where the corrected p is below 0.05. There is a
    row for each measured cell whose base model is measured on the same task. `work` is the tokens
    of the cell's runs times the experts that each takes in a layer, relative to the base model's;
    `seconds` of answering are relative, too. Both are means over seeds. A backward pass (C3PO) is
    not counted.
    """
    bases = {}
    for cell in table.cells:
        if cell.coordinates.get("method") == BASE and cell.results:
            bases[_question(cell)] = cell

    rows = []
    for cell in table.cells:
        base = bases.get(_question(cell))
        row = None if base is None else _quality_row(table, cell, base)
        if row is not None:
            rows.append(row)
    frame = DataFrame(rows, columns=QUALITY_COLUMNS, dtype=object)
    draw = partial(_draw_quality, labels=list(frame["label"].unique()))
    return panels_by(frame, "task", draw, height=2.6, columns=2)


def _question(cell: TableCell) -> tuple[str, str]:
    """Model and task."""
    return cell.coordinates["model"], cell.coordinates["task"]


def _quality_row(table: CellTable, cell: TableCell, base: TableCell) -> dict[str, Any] | None:
    """The row of a cell next to the base model's; None unless both are measured."""
    score = cell.scores(table.family).get(BASE)
    base_score = base.score()
    if score is None or score.value is None or base_score is None or base_score.value is None:
        return None
    # without the paired difference that of the two values, which has no interval
    difference = score.difference
    if difference is None:
        difference = score.value - base_score.value
    low, high = score.tested_interval or (None, None)
    cost = _cost_of(cell)
    base_cost = _cost_of(base)
    return vars(score) | {
        "task": f"{score.task} ({score.model})",
        "label": varied_label(cell, table.cells),
        "lower_is_better": cell.results[0].lm_eval.better(score.task, score.metric) is False,
        "difference": difference,
        "low": low,
        "high": high,
        "significant": score.significant,
        "work": cost.work / base_cost.work,
        "seconds": cost.seconds / base_cost.seconds,
        "examples": score.n,
    }


class CellCost(NamedTuple):
    """What the answers of a cell cost: means over seeds."""

    work: float
    """The experts that all tokens take in a layer."""
    seconds: float
    """Of answering."""


def _cost_of(cell: TableCell) -> CellCost:
    """The cost of a cell that has results."""
    works = []
    seconds = []
    for result in cell.results:
        experts = float(result.report.get("experts_per_token") or result.model.top_k or 1)
        works.append(experts * (result.cost.tokens_in or 0.0))
        seconds.append(result.cost.wall_seconds or 0.0)
    return CellCost(fmean(works), fmean(seconds))


def _draw_quality(axis: Axes, task: str, rows: DataFrame, labels: Sequence[str]) -> None:
    """The panel of a task: a point for each row. `labels` are those of all panels, in the order of
    their looks."""
    for place, row in enumerate(rows.itertuples()):
        colour, marker = look_of(labels.index(row.label))
        look = {"style": marker, "label": row.label, "mfc": colour if row.significant else "white"}
        curve(axis, rows[place : place + 1], "work", "difference", colour=colour, **look)
    axis.axhline(0, color=GREY, ls=":", lw=1.1)
    first = rows.iloc[0]
    better = "lower is better" if first["lower_is_better"] else "higher is better"
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set(
        title=f"{task}\n{first['examples']} examples, at most {rows['seeds'].max()} seeds",
        xlabel="work of experts, base = 1",
        ylabel=f"difference of {quantity(first['metric'])}\n({better})",
    )
