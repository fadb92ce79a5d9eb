"""The expert metrics of MoE-Bench (section 4.1), `metrics=expert`: on the terminal, on pages and for loggers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from moe_lab.metrics.registry import counted_metrics, intervention_metrics, interventions
from moe_lab.metrics.stored import StoredMetrics, stored_metrics
from moe_lab.reports.columns import Column, names, numbers, print_table, texts
from moe_lab.reports.scores import interval_column, run_labels
from moe_lab.results.family import EXPERT_METRICS, Family
from moe_lab.results.measured import Difference, number
from moe_lab.results.model import RunResult
from moe_lab.results.score import ComparisonKey
from moe_lab.results.scores import headline
from moe_lab.results.stored import Interval


def expert_metrics_of(result: RunResult) -> StoredMetrics | None:
    """The expert metrics stored with a result; None without."""
    return stored_metrics(result.stored_in, result.run_id, result.model.commit)


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
        if loss.difference is not None
    }


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

    name: str
    """Of the counted metric or the intervention."""
    path: tuple[str, ...]
    """Its place in `StoredMetrics.difference`; the last part of an accuracy lost is lm-eval's metric."""
    label: str
    of: str
    value: float | None
    interval: Interval | None
    bound: str
    """The largest entropy possible; the accuracy before and after."""
    difference: Difference
    """To the base model."""
    task: str = ""
    """Of an accuracy lost."""
    p: float | None = None
    """McNemar's, uncorrected."""

    def comparison(self, run: RunResult) -> ComparisonKey:
        return run.run_id, self.task, f"expert.{self.name} {self.path[-1]}", UNCHANGED


Row = tuple[RunResult, str, ExpertLine]
"""A run, its settings, and a line."""


def expert_columns(rows: Sequence[Row], family: Family) -> list[Column]:
    """One row per run, metric and subject."""
    runs, settings, found = zip(*rows, strict=True)
    corrected = [family.corrected.get(line.comparison(run)) for run, _, line in rows]
    return [
        *names(
            model=[run.model.name for run in runs],
            method=[run.method.name for run in runs],
            settings=settings,
            task=[",".join(run.task.names) for run in runs],
            metric=[line.label for line in found],
            of=[line.of for line in found],
        ),
        numbers("value", [line.value for line in found], number),
        interval_column("95% interval", [line.interval for line in found], spare=2),
        texts("at most, or accuracy", [line.bound for line in found], spare=1),
        numbers("p (Holm)" if family.tests[EXPERT_METRICS] > 1 else "p", corrected, number),
        numbers(
            "to base", [line.difference.difference for line in found], partial(number, sign=True)
        ),
        interval_column(
            "95% interval", [line.difference.interval for line in found], sign=True, spare=3
        ),
    ]


def expert_lines(metrics: StoredMetrics) -> list[ExpertLine]:
    """The lines of one run's expert_metrics.json. A group of more than four tasks has one for all its documents."""
    lines = [
        ExpertLine(
            name=name,
            path=(name, phase),
            label=f"{metric.label}, bits",
            of=of,
            value=one.value,
            interval=one.interval,
            bound=number(one.maximum),
            difference=metrics.difference("baseline", name, phase),
        )
        for name, metric in counted_metrics().items()
        for phase, of in PHASES.items()
        if (one := metrics.entropies(name).get(phase)) is not None
    ]
    for name, each in interventions():
        tasks = {task: found for task, found in metrics.losses(name, each).items() if found}
        shown = {"all": tasks["all"]} if len(tasks) > 4 and "all" in tasks else tasks
        for task, found in shown.items():
            metric = headline(found, metrics.metric)
            loss, path = found[metric], (*each.path(name), "tasks", task, metric)
            line = ExpertLine(
                name=each.name,
                path=path,
                label=f"{intervention_metrics()[name].label}, {metric}",
                of=each.label if len(shown) == 1 else f"{each.label}, {task}",
                value=loss.difference,
                interval=loss.interval,
                bound=f"{number(loss.base)} to {number(loss.changed)}",
                difference=metrics.difference("baseline", *path),
                task=task,
                p=loss.p,
            )
            lines.append(line)
    return lines


def comparisons(results: Sequence[RunResult]) -> dict[ComparisonKey, float | None]:
    """McNemar's p of each accuracy lost in one evaluation, uncorrected; None for the mean of several."""
    return {line.comparison(run): line.p for run, _, line in _rows(results) if line.task}


def print_expert_metrics(results: Sequence[RunResult], family: Family) -> None:
    """Print one table of all results that have expert metrics, with the corrected p of the command's family."""
    if rows := _rows(results):
        print()
        print_table("Expert metrics", expert_columns(rows, family))
        print(CORRECTED)


def _rows(results: Sequence[RunResult]) -> list[Row]:
    return [
        (run, label, line)
        for run, label in zip(results, run_labels(results), strict=True)
        if (metrics := expert_metrics_of(run)) is not None
        for line in expert_lines(metrics)
    ]
