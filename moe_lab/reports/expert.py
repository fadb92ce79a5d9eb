"""The expert metrics of MoE-Bench (section 4.1), as tables and for loggers.

A run has them with `metrics=expert`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moe_lab.metrics.losses import Loss
from moe_lab.metrics.registry import (
    Intervention,
    counted_metrics,
    intervention_metrics,
    interventions,
)
from moe_lab.metrics.stored import StoredMetrics, stored_metrics
from moe_lab.reports.columns import Column, names, numbers, print_table, texts
from moe_lab.reports.labels import run_labels
from moe_lab.reports.score_columns import interval_column, signed_number
from moe_lab.results.family import EXPERT_METRICS, Family
from moe_lab.results.measured import Difference, number
from moe_lab.results.model import RunResult
from moe_lab.results.score import ComparisonKey
from moe_lab.results.scores import headline
from moe_lab.results.stored import Interval

UNCHANGED = "unchanged routing"
"""The run that a lost accuracy is compared with."""
CORRECTED = (
    "Entropies are in bits, corrected by the jackknife: those of few tokens are too low. Capacity "
    "and Specialization are accuracy lost (docs/expert_metrics.md)."
)
PHASES = {"all": "all tokens", "prefill": "prompts", "decode": "answers"}
MOST_LOSSES = 4
"""Losses of accuracy that are shown under one intervention: one per task, and one over all
documents.

A run with more shows only the loss over all documents."""


def expert_metrics_of(result: RunResult) -> StoredMetrics | None:
    """The expert metrics that are stored with a result; None if it has none."""
    return stored_metrics(result.stored_in, result.run_id, result.model.commit)


def logged_values(metrics: StoredMetrics) -> dict[str, float]:
    """The expert metrics as loggers name them. Metrics without a value are left out.

    An entropy is `expert/<metric>/<kind of tokens>`, in its unit; an accuracy lost is
    `expert/<intervention>/<task>/<metric,filter>`.
    """
    values = {}
    for name in counted_metrics():
        for phase, entropy in metrics.entropies(name).items():
            if entropy.value is not None:
                values[f"expert/{name}/{phase}"] = entropy.value

    for name, intervention in interventions():
        for task, losses in metrics.losses(name, intervention).items():
            for metric, loss in losses.items():
                if loss.difference is not None:
                    key = f"expert/{intervention.logged_as}/{task}/{metric}"
                    values[key] = loss.difference
    return values


@dataclass(frozen=True, kw_only=True)
class ExpertLine:
    """An expert metric of one run."""

    name: str
    """Of the counted metric or the intervention."""
    path: tuple[str, ...]
    """Its place in `StoredMetrics.difference`; the last part of an accuracy lost is lm-eval's
    metric."""
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
        """The key of its comparison with unchanged routing (`Family`)."""
        return run.run_id, self.task, f"expert.{self.name} {self.path[-1]}", UNCHANGED


class Row(NamedTuple):
    """A line of the table of expert metrics."""

    run: RunResult
    settings: str
    line: ExpertLine


def expert_columns(rows: Sequence[Row], family: Family) -> list[Column]:
    """The columns of the table: names of run and metric, value, p, and difference to the base
    model.

    A metric without a value, a p or a difference has an empty cell there.
    """
    lines = [row.line for row in rows]
    return [*_name_columns(rows), *_value_columns(rows, family), *_difference_columns(lines)]


def _name_columns(rows: Sequence[Row]) -> list[Column]:
    """What each row is of: run, metric, and kind of tokens or intervention."""
    runs = [row.run for row in rows]
    lines = [row.line for row in rows]
    return names(
        model=[run.model.name for run in runs],
        method=[run.method.name for run in runs],
        settings=[row.settings for row in rows],
        task=[",".join(run.task.names) for run in runs],
        metric=[line.label for line in lines],
        of=[line.of for line in lines],
    )


def _value_columns(rows: Sequence[Row], family: Family) -> list[Column]:
    """Value, interval, bound, and p, which is corrected if the family has several tests."""
    lines = [row.line for row in rows]
    p_heading = "p (Holm)" if family.tests[EXPERT_METRICS] > 1 else "p"
    corrected_p = []
    for row in rows:
        comparison = row.line.comparison(row.run)
        corrected_p.append(family.corrected.get(comparison))
    return [
        numbers("value", [line.value for line in lines], number),
        interval_column("95% interval", [line.interval for line in lines], spare=2),
        texts("at most, or accuracy", [line.bound for line in lines], spare=1),
        numbers(p_heading, corrected_p, number),
    ]


def _difference_columns(lines: Sequence[ExpertLine]) -> list[Column]:
    """The difference to the base model, and its interval."""
    differences = [line.difference.difference for line in lines]
    intervals = [line.difference.interval for line in lines]
    return [
        numbers("to base", differences, signed_number),
        interval_column("95% interval", intervals, sign=True, spare=3),
    ]


def expert_lines(metrics: StoredMetrics) -> list[ExpertLine]:
    """The lines of one run's expert_metrics.json.

    For more than three tasks, the accuracy lost has one line over all documents (MOST_LOSSES).
    """
    lines = list(_entropy_lines(metrics))
    for name, intervention in interventions():
        lines += _loss_lines(metrics, name, intervention)
    return lines


def _entropy_lines(metrics: StoredMetrics) -> Iterator[ExpertLine]:
    """The counted metrics, of each kind of tokens."""
    for name, metric in counted_metrics().items():
        entropies = metrics.entropies(name)
        for phase, tokens in PHASES.items():
            entropy = entropies.get(phase)
            if entropy is None:
                continue
            yield ExpertLine(
                name=name,
                path=(name, phase),
                label=f"{metric.label}, {metric.unit}",
                of=tokens,
                value=entropy.value,
                interval=entropy.interval,
                bound=number(entropy.maximum),
                difference=metrics.difference("baseline", name, phase),
            )


def _loss_lines(
    metrics: StoredMetrics, name: str, intervention: Intervention
) -> Iterator[ExpertLine]:
    """The accuracy lost under an intervention, of each task that is shown."""
    losses_by_task = _shown_tasks(metrics.losses(name, intervention))
    for task, losses in losses_by_task.items():
        metric = headline(losses, metrics.metric)
        loss = losses[metric]
        path = (*intervention.path(name), "tasks", task, metric)
        of = intervention.label
        if len(losses_by_task) > 1:
            of = f"{intervention.label}, {task}"
        yield ExpertLine(
            name=intervention.name,
            path=path,
            label=f"{intervention_metrics()[name].label}, {metric}",
            of=of,
            value=loss.difference,
            interval=loss.interval,
            bound=f"{number(loss.base)} to {number(loss.changed)}",
            difference=metrics.difference("baseline", *path),
            task=task,
            p=loss.p,
        )


def _shown_tasks(losses_by_task: dict[str, dict[str, Loss]]) -> dict[str, dict[str, Loss]]:
    """The losses of each task, without tasks that have none.

    If there are more than MOST_LOSSES, only those over the documents of all tasks ("all").
    """
    measured = {task: losses for task, losses in losses_by_task.items() if losses}
    if len(measured) > MOST_LOSSES and "all" in measured:
        return {"all": measured["all"]}
    return measured


def comparisons(results: Sequence[RunResult]) -> dict[ComparisonKey, float | None]:
    """McNemar's p, uncorrected, of each accuracy lost.

    None for a mean over several evaluations. Entropies are not among the keys: they have no test.
    """
    p_values = {}
    for row in _rows(results):
        if row.line.task:
            p_values[row.line.comparison(row.run)] = row.line.p
    return p_values


def print_expert_metrics(results: Sequence[RunResult], family: Family) -> None:
    """Print one table of all results that have expert metrics; nothing if none has.

    p-values are corrected within the command's family.
    """
    rows = _rows(results)
    if rows:
        print()
        print_table("Expert metrics", expert_columns(rows, family))
        print(CORRECTED)


def _rows(results: Sequence[RunResult]) -> list[Row]:
    """The lines of all results that have expert metrics."""
    rows = []
    for result, settings in zip(results, run_labels(results), strict=True):
        metrics = expert_metrics_of(result)
        if metrics is not None:
            rows += [Row(result, settings, line) for line in expert_lines(metrics)]
    return rows
