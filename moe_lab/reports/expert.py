"""The expert metrics of MoE-Bench (section 4.1), `metrics=expert`: on the terminal, on pages and for loggers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from moe_lab.metrics.intervals import Loss
from moe_lab.metrics.registry import Intervention, counted_metrics, intervention_metrics, interventions
from moe_lab.metrics.stored import StoredMetrics, stored_metrics
from moe_lab.reports.terminal.layout import TextTable, names, numbers, print_text_table, text_table
from moe_lab.reports.terminal.results import HOLM, INTERVAL, P, run_labels
from moe_lab.results.measured import interval, number
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import EXPERT_METRICS, Family
from moe_lab.results.scores import Comparison, headline
from moe_lab.results.significance import ALPHA

if TYPE_CHECKING:
    import pandas as pd


def expert_metrics_of(result: RunResult) -> StoredMetrics | None:
    """The expert metrics stored with a result; None without."""
    return stored_metrics(result.stored_in, result.run_id, result.commit)


def comparisons(results: Sequence[RunResult]) -> dict[Comparison, float | None]:
    """McNemar's p of each accuracy lost in one evaluation, uncorrected; None for the mean of several."""
    stored = [(run.run_id, metrics) for run in results if (metrics := expert_metrics_of(run)) is not None]
    return {key: p for run_id, metrics in stored for key, p in lost_p_values(metrics, run_id).items()}


def print_expert_metrics(results: Sequence[RunResult], family: Family) -> None:
    """Print one table of all results that have expert metrics, with the corrected p of the command's family."""
    rows: list[tuple[str, ...]] = []
    for run, label in zip(results, run_labels(results), strict=True):
        if (metrics := expert_metrics_of(run)) is not None:
            place = (run.model, run.method, label, ",".join(run.requested))
            rows += [(*place, *line) for line in lines(metrics, run.run_id, family)]
    if rows:
        print()
        print_text_table(expert_table(rows, family), explained(family))
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


def layer_rows(content: StoredMetrics) -> list[tuple[object, ...]]:
    """The number of each MoE layer and its entropies over all tokens, a column per metric, for a page."""
    return list(enumerate(zip(*(content.layers(name, "all") for name in counted_metrics()), strict=True)))


UNCHANGED = "unchanged routing"
"""The run that a lost accuracy is compared with."""
CORRECTED = "Both entropies are corrected by the jackknife: entropies of few tokens are too low."
PHASES = {"all": "all tokens", "prefill": "prompts", "decode": "answers"}
Line = tuple[str, str, str, str, str, str, str, str]
"""Metric, subject, value, interval, accuracies or the largest possible value, p, difference to base, interval."""


def explained(family: Family) -> dict[str, str]:
    """The meanings of columns (docs/expert_metrics.md)."""
    test = "McNemar's exact test of the lost accuracy"
    corrected = f"{test}, corrected for their number ({family.note})"
    return {
        "value": "bits of entropy; for Capacity and Specialization the accuracy lost.",
        "at most, or accuracy": "the largest entropy possible; accuracy before and after.",
        P: f"{test}. Significant below {ALPHA}.",
        HOLM: f"{corrected}. Significant below {ALPHA}.",
        "to base": "value minus that of base.",
    }


def expert_table(rows: Sequence[tuple[str, ...]], family: Family) -> TextTable:
    """One row per run, metric and subject. Each row has the run's model, method, settings, task, and a `Line`."""
    columns = [list(cells) for cells in zip(*rows, strict=True)]
    model, method, label, task, metric, subject, value, limits, bound, p, difference, its_limits = columns
    run = {"model": model, "method": method, "settings": label, "task": task, "metric": metric, "of": subject}
    p_heading = HOLM if family.tests[EXPERT_METRICS] > 1 else P
    values = numbers({"value": value, INTERVAL: limits, "at most, or accuracy": bound, p_heading: p})
    differences = numbers({"to base": difference, INTERVAL: its_limits})
    return text_table("Expert metrics", [*names(run), *values, *differences])


def lines(metrics: StoredMetrics, run_id: str, family: Family) -> list[Line]:
    """The rows of one run's expert_metrics.json."""
    return [*_entropies(metrics), *_losses(metrics, run_id, family)]


def lost_p_values(metrics: StoredMetrics, run_id: str) -> dict[Comparison, float | None]:
    """The p of each shown loss before the correction; None for a mean over random routings."""
    return {
        _comparison(run_id, each, task, metric): loss.p
        for name, each in interventions()
        for task, metric, loss in _of_tasks(metrics.losses(name, each), metrics.metric)
    }


def _comparison(run_id: str, each: Intervention, task: str, metric: str) -> Comparison:
    return run_id, task, f"expert.{each.name} {metric}", UNCHANGED


def _entropies(metrics: StoredMetrics) -> Iterator[Line]:
    for name, metric in counted_metrics().items():
        found = metrics.entropies(name)
        for phase, of in PHASES.items():
            if (one := found.get(phase)) is not None:
                shown = number(one.value), interval(one.interval), number(one.maximum), ""
                yield f"{metric.label}, bits", of, *shown, *_difference(metrics, name, phase)


def _losses(metrics: StoredMetrics, run_id: str, family: Family) -> Iterator[Line]:
    for name, each in interventions():
        found = _of_tasks(metrics.losses(name, each), metrics.metric)
        for task, metric, loss in found:
            p = family.corrected.get(_comparison(run_id, each, task, metric))
            scores = f"{number(loss.base)} to {number(loss.changed)}"
            limits = interval(loss.interval, sign=True)
            shown = number(loss.difference, sign=True), limits, scores, "" if p is None else number(p)
            where = each.label if len(found) == 1 else f"{each.label}, {task}"
            difference = _difference(metrics, *each.path(name), "tasks", task, metric)
            yield f"{intervention_metrics()[name].label}, {metric}", where, *shown, *difference


def _of_tasks(tasks: dict[str, dict[str, Loss]], metric_name: str | None) -> list[tuple[str, str, Loss]]:
    """Each task with its metric and loss. A group of more than four tasks has one entry for all its documents."""
    shown = {"all": tasks["all"]} if len(tasks) > 4 and tasks.get("all") else tasks
    named = [(task, headline(losses, metric_name), losses) for task, losses in shown.items() if losses]
    return [(task, metric, losses[metric]) for task, metric, losses in named]


def _difference(metrics: StoredMetrics, *path: str) -> tuple[str, str]:
    """The difference to the base model, and its interval; empty without one."""
    found = metrics.difference("baseline", *path)
    if found.difference is None:
        return "", ""
    return number(found.difference, sign=True), interval(found.interval, sign=True)
