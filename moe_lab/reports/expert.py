"""The expert metrics of MoE-Bench (section 4.1), `metrics=expert`: on the terminal, on pages and for loggers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from moe_lab.metrics.intervals import Loss
from moe_lab.metrics.registry import Intervention, counted_metrics, intervention_metrics, interventions
from moe_lab.metrics.stored import StoredMetrics, stored_metrics
from moe_lab.reports.columns import Column, count, names, numbers, print_table, texts
from moe_lab.reports.scores import limits, run_labels
from moe_lab.results.measured import Difference, Interval, number
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import EXPERT_METRICS, Family
from moe_lab.results.scores import ComparisonKey, headline

if TYPE_CHECKING:
    import pandas as pd


def expert_metrics_of(result: RunResult) -> StoredMetrics | None:
    """The expert metrics stored with a result; None without."""
    return stored_metrics(result.stored_in, result.run_id, result.commit)


def comparisons(results: Sequence[RunResult]) -> dict[ComparisonKey, float | None]:
    """McNemar's p of each accuracy lost in one evaluation, uncorrected; None for the mean of several."""
    stored = [(run.run_id, metrics) for run in results if (metrics := expert_metrics_of(run)) is not None]
    return {key: p for run_id, metrics in stored for key, p in lost_p_values(metrics, run_id).items()}


def print_expert_metrics(results: Sequence[RunResult], family: Family) -> None:
    """Print one table of all results that have expert metrics, with the corrected p of the command's family."""
    rows = [
        (run, label, line)
        for run, label in zip(results, run_labels(results), strict=True)
        if (metrics := expert_metrics_of(run)) is not None
        for line in lines(metrics, run.run_id, family)
    ]
    if rows:
        print()
        print_table("Expert metrics", expert_columns(rows, family))
        print(CORRECTED)


def logged_values(content: StoredMetrics) -> dict[str, float]:
    """`expert/<metric>/<of>` in bits, and per task `expert/<which>/<task>/<metric,filter>`, the accuracy lost."""
    scores = {
        f"expert/{metric}/{of}": one.value
        for metric in counted_metrics()
        for of, one in content.entropies(metric).items()
        if one.value is not None
    }
    return scores | {
        f"expert/{each.logged_as}/{task}/{metric}": loss.difference
        for name, each in interventions()
        for task, losses in content.losses(name, each).items()
        for metric, loss in losses.items()
    }


def layer_frame(content: StoredMetrics) -> pd.DataFrame:
    """A row per metric, kind of tokens and MoE layer."""
    import pandas as pd

    rows = [
        (metric, of, index, layer.value, *(layer.interval or (None, None)), layer.maximum)
        for metric in counted_metrics()
        for of in content.entropies(metric)
        for index, layer in enumerate(content.layers(metric, of))
    ]
    return pd.DataFrame(rows, columns=["metric", "of", "layer", "value", "low", "high", "maximum"])


def layer_columns(content: StoredMetrics) -> list[Column]:
    """The entropies of each MoE layer over all tokens, for a page."""
    layers = {metric.label: content.layers(name, "all") for name, metric in counted_metrics().items()}
    columns = []
    for label, own in layers.items():
        columns += [
            numbers(label, [one.value for one in own], number),
            limits("95% interval", [one.interval for one in own]),
        ]
    return [numbers("layer", list(range(len(own))), count), *columns] if layers else []


UNCHANGED = "unchanged routing"
"""The run that a lost accuracy is compared with."""
CORRECTED = (
    "Entropies are in bits, corrected by the jackknife: those of few tokens are too low. Capacity and Specialization "
    "are accuracy lost (docs/expert_metrics.md)."
)
PHASES = {"all": "all tokens", "prefill": "prompts", "decode": "answers"}


@dataclass(frozen=True, kw_only=True)
class ExpertLine:
    """An expert metric of one run."""

    metric: str
    of: str
    value: float | None
    interval: Interval | None
    bound: str
    """The largest entropy possible; the accuracy before and after."""
    p: float | None = None
    """Corrected."""
    difference: Difference
    """To the base model."""


def expert_columns(rows: Sequence[tuple[RunResult, str, ExpertLine]], family: Family) -> list[Column]:
    """One row per run, metric and subject; each has the run, its settings, and the line."""
    found = [line for *_, line in rows]
    run = {
        "model": lambda row: row[0].model,
        "method": lambda row: row[0].method,
        "settings": lambda row: row[1],
        "task": lambda row: ",".join(row[0].requested),
        "metric": lambda row: row[2].metric,
        "of": lambda row: row[2].of,
    }
    p = "p (Holm)" if family.tests[EXPERT_METRICS] > 1 else "p"
    return [
        *names(rows, run),
        numbers("value", [line.value for line in found], number),
        limits("95% interval", [line.interval for line in found], spare=2),
        texts("at most, or accuracy", [line.bound for line in found], spare=1),
        numbers(p, [line.p for line in found], number),
        numbers("to base", [line.difference.difference for line in found], partial(number, sign=True)),
        limits("95% interval", [line.difference.interval for line in found], sign=True, spare=3),
    ]


def lines(metrics: StoredMetrics, run_id: str, family: Family) -> list[ExpertLine]:
    """The rows of one run's expert_metrics.json."""
    return [*_entropies(metrics), *_losses(metrics, run_id, family)]


def lost_p_values(metrics: StoredMetrics, run_id: str) -> dict[ComparisonKey, float | None]:
    """The p of each shown loss before the correction; None for a mean over random routings."""
    return {
        _comparison(run_id, each, task, metric): loss.p
        for name, each in interventions()
        for task, metric, loss in _of_tasks(metrics.losses(name, each), metrics.metric)
    }


def _comparison(run_id: str, each: Intervention, task: str, metric: str) -> ComparisonKey:
    return run_id, task, f"expert.{each.name} {metric}", UNCHANGED


def _entropies(metrics: StoredMetrics) -> Iterator[ExpertLine]:
    for name, metric in counted_metrics().items():
        found = metrics.entropies(name)
        for phase, of in PHASES.items():
            if (one := found.get(phase)) is not None:
                yield ExpertLine(
                    metric=f"{metric.label}, bits",
                    of=of,
                    value=one.value,
                    interval=one.interval,
                    bound=number(one.maximum),
                    difference=metrics.difference("baseline", name, phase),
                )


def _losses(metrics: StoredMetrics, run_id: str, family: Family) -> Iterator[ExpertLine]:
    for name, each in interventions():
        found = _of_tasks(metrics.losses(name, each), metrics.metric)
        for task, metric, loss in found:
            yield ExpertLine(
                metric=f"{intervention_metrics()[name].label}, {metric}",
                of=each.label if len(found) == 1 else f"{each.label}, {task}",
                value=loss.difference,
                interval=loss.interval,
                bound=f"{number(loss.base)} to {number(loss.changed)}",
                p=family.corrected.get(_comparison(run_id, each, task, metric)),
                difference=metrics.difference("baseline", *each.path(name), "tasks", task, metric),
            )


def _of_tasks(tasks: dict[str, dict[str, Loss]], metric_name: str | None) -> list[tuple[str, str, Loss]]:
    """Each task with its metric and loss. A group of more than four tasks has one entry for all its documents."""
    shown = {"all": tasks["all"]} if len(tasks) > 4 and tasks.get("all") else tasks
    named = [(task, headline(losses, metric_name), losses) for task, losses in shown.items() if losses]
    return [(task, metric, losses[metric]) for task, metric, losses in named]
