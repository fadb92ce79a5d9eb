"""Figures of cost: overhead by n, equivalent model size (RoE, Figures 4 and 5), and quality against cost."""

from collections.abc import Sequence
from functools import partial
from operator import mul, truediv
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from moe_lab.reports.figures.primitives import (
    curve,
    curves,
    legend_below,
    panel_per,
    panels,
    panels_by,
)
from moe_lab.reports.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Drawing,
    count_axis,
    log_axis,
    look_of,
)
from moe_lab.reports.papers.cells import CellTable, TableCell, varied_label
from moe_lab.reports.papers.metrics import quantity
from moe_lab.results.model import BASE

QUANTITIES = {
    "seconds_per_token": "time per generated token",
    "memory_bytes": "peak memory",
    "watts": "power",
}
"""Quantities relative to n=1, with their labels. Throughput is the inverse of the first one."""
CACHE_LABELS = {"clean": "clean cache", "standard": "standard cache", "none": "no cache"}


def draw_overhead(table: CellTable) -> Drawing:
    """Memory, power and time of RoE, relative to n=1, against the number of routing samples (RoE, Figure 4).

    One panel per quantity; one line per cache and temperature. A row is a cell that generated text. `memory_bytes` is
    the peak of a CUDA device; elsewhere the weights and the peak memory that answering adds to the process. `watts` is
    energy over time; None without a meter. Relative values are None where there is no n=1.
    """
    rows = []
    for result in (cell.results[0] for cell in table.cells if cell.results):
        cost, roe = result.cost, result.report
        tokens, seconds, energy = cost.tokens_out, cost.wall_seconds, cost.energy_joules
        if not tokens or not seconds:
            continue
        weights, working = cost.weight_bytes, cost.peak_working_bytes
        memory = None if weights is None or working is None else weights + working
        if str(cost.device).startswith("cuda"):
            memory = cost.peak_memory_bytes
        row: dict[str, Any] = {
            "model": result.model.name,
            "task": ",".join(result.task.names),
            "documents": result.num_documents,
            "device": cost.device,
            "cache": roe["cache"],
            "temperature": "tuned" if any(roe["temperatures"]) else "0",
            "n": roe["n"],
            "tokens_out": tokens,
            "seconds_per_token": seconds / tokens,
            "tokens_per_second": tokens / seconds,
            "memory_bytes": memory,
            "energy_joules": energy,
            "watts": None if energy is None else energy / seconds,
            "run_id": result.run_id,
        }
        rows.append(row)
    single = next((row for row in rows if row["n"] == 1), {})
    for row in rows:
        for name in (*QUANTITIES, "tokens_per_second"):
            one = single.get(name)
            row[f"relative_{name}"] = row[name] / one if row[name] is not None and one else None
    rows.sort(key=lambda row: (row["temperature"] != "0", row["cache"], row["n"]))

    def draw(title: str) -> Figure:
        model, device, task, documents = (
            rows[0][name] for name in ("model", "device", "task", "documents")
        )
        heading = f"{title}\n{model} on {device}, {task}, {documents} documents, batch 1, one run per point"
        frame = DataFrame(rows, dtype=object)
        frame["line"] = frame["cache"].map(CACHE_LABELS) + ", temperature " + frame["temperature"]
        panels = [(label, f"relative_{name}", frame) for name, label in QUANTITIES.items()]
        return panel_per(panels, heading, _quantity, height=2.5)

    return Drawing(rows, draw)


def _quantity(axis: Axes, label: str, key: str, frame: DataFrame) -> None:
    if frame[key].isna().all():  # power needs a meter
        axis.set(title=f"{label}: not measured", xticks=[], yticks=[])
        return
    curves(axis, frame, "n", key)
    count_axis(axis, sorted(frame["n"].unique()), "n (routing samples per token)")
    if frame[key].max() > 8:
        log_axis(axis)
    axis.set(title=label, ylabel="relative to n=1")


COSTS = {"milliseconds_per_token": "time per generated token", "mebibytes": "memory"}


def draw_equivalent(measurements: Sequence[dict[str, Any]]) -> Drawing:
    """Equivalent model size of RoE, and its cost next to a plain model of that size (RoE, Figure 5).

    Three panels against n: equivalent size, latency, memory; one row per n, as
    `moe_lab/runs/experiments/measurement.py` measures them.
    """
    return Drawing(measurements, partial(_equivalent, measurements))


def _equivalent(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    frame, first = DataFrame(rows, dtype=object), rows[0]
    figure, axes = panels(3, height=2.5)
    figure.suptitle(
        f"{title}\n{first['model']} on {first['device']}; {first['task']}, {first['documents']} test documents; "
        f"{first['new_tokens']} new tokens, batch 1"
    )
    sizes = frame.assign(low=frame["size_ratio_low"], high=frame["size_ratio_high"])
    curve(axes[0], sizes, "n", "size_ratio", label="RoE")
    if frame["calibrated_size_ratio"].notna().all():
        label = "calibration (one logit scale, free)"
        curve(axes[0], frame, "n", "calibrated_size_ratio", colour=GREEN, style=":", label=label)
    axes[0].set(title="equivalent size (95% interval)", ylabel="equivalent size / own size")
    plain = "plain model of equivalent size (more layers, random weights)"
    # the method and the larger model relative to the base model; all were measured in turns
    measured = {key.removesuffix("_mebibytes") for key in first if key.endswith("_mebibytes")}
    [method] = measured - {"base", "equivalent"}
    for axis, (name, of) in zip(axes[1:], COSTS.items(), strict=True):
        for kind, style, colour, label in (
            (method, "o-", BLUE, "RoE"),
            ("equivalent", "s-", ORANGE, plain),
        ):
            relative = frame.assign(value=frame[f"{kind}_{name}"] / frame[f"base_{name}"])
            curve(axis, relative, "n", colour=colour, style=style, label=label)
        axis.set(title=of, ylabel="relative to base")
    for axis in axes:
        axis.axhline(1, color=GREY, ls="--", lw=1.2, label="base model")
        count_axis(axis, list(frame["n"]), "n (routing samples per token)")
    legend_below(figure, axes, columns=3)
    return figure


QUALITY_COLUMNS = [
    *("task", "label", "metric", "lower_is_better", "value", "difference", "low", "high", "p_holm"),
    *("significant", "work", "seconds", "seeds", "examples"),
]


def draw_quality_cost(table: CellTable) -> Drawing:
    """Quality against cost: the difference to the base model, by the expert work of an answer; one panel per task.

    A point with its 95% interval per method, filled where the corrected p is below 0.05. There is a row for each
    measured cell whose base model is measured on the same task. `work` is the tokens of the cell's runs times the
    experts that each takes in a layer, relative to the base model's; `seconds` of answering are relative, too. Both are
    means over seeds. A backward pass (C3PO) is not counted.
    """
    bases = {
        (cell.coordinates["model"], cell.coordinates["task"]): cell
        for cell in table.cells
        if cell.coordinates.get("method") == BASE and cell.results
    }
    rows = []
    for cell in table.cells:
        base = bases.get((cell.coordinates["model"], cell.coordinates["task"]))
        score, plain = cell.scores(table.family).get(BASE), base.score() if base else None
        if (
            base is None
            or score is None
            or plain is None
            or score.value is None
            or plain.value is None
        ):
            continue
        low, high = score.tested_interval or (None, None)
        work, seconds = map(truediv, _costs(cell), _costs(base))
        # without the paired difference that of the two values, which has no interval
        difference = score.value - plain.value if score.difference is None else score.difference
        more = {
            "task": f"{score.task} ({score.model})",
            "label": varied_label(cell, table.cells),
            "lower_is_better": cell.results[0].lm_eval.better(score.task, score.metric) is False,
            "difference": difference,
            "low": low,
            "high": high,
            "significant": score.significant,
            "work": work,
            "seconds": seconds,
            "examples": score.n,
        }
        rows.append(vars(score) | more)
    frame = DataFrame(rows, columns=QUALITY_COLUMNS, dtype=object)
    draw = partial(_quality, labels=list(frame["label"].unique()))
    return panels_by(frame, "task", draw, height=2.6, columns=2)


def _costs(cell: TableCell) -> list[float]:
    """The experts that all tokens take in a layer, and the seconds of answering: means over seeds."""
    experts = [
        float(result.report.get("experts_per_token") or result.model.top_k or 1)
        for result in cell.results
    ]
    tokens = [result.cost.tokens_in or 0.0 for result in cell.results]
    seconds = [result.cost.wall_seconds or 0.0 for result in cell.results]
    return [fmean(map(mul, experts, tokens)), fmean(seconds)]


def _quality(axis: Axes, task: str, rows: DataFrame, labels: Sequence[str]) -> None:
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
