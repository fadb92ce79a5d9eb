"""Interventions: the accuracy that a policy costs, with 95% intervals over documents."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from moe_lab.results.measured import Ci95, Measured, Paired
from moe_lab.results.paired import paired
from moe_lab.results.samples import Log, Values, logged_values
from moe_lab.results.statistics import Aggregate, interval_of_difference
from moe_lab.results.task_scores import aggregation

SCORES = "scores"
"""The key of the array with each document's scores."""
OVER_ALL_TASKS = "all"


class Loss(Measured):
    """The accuracy that a policy costs in a task: `base` minus `changed`."""

    n: int | None = None
    base: float | None = None
    changed: float | None = None
    """The mean over evaluations."""
    difference: float | None
    interval: Ci95 = None
    """Over documents."""
    runs: list[Paired] = Field([])
    """Of each evaluation: `to_right` counts the documents that only base answers correctly."""

    @property
    def p(self) -> float | None:
        """McNemar's p of a single evaluation; None for several."""
        if len(self.runs) != 1:
            return None
        return self.runs[0].p_mcnemar


def losses(tasks: dict[str, Any], before: Log, changed: Sequence[Log]) -> dict[str, Any]:
    """The accuracy lost in each task, by `metric,filter`; for several tasks also "all", the loss
    over all documents.

    Args:
        before: samples under the unchanged routing.
        changed: samples of one or more evaluations under a policy; the loss is the difference to
            their mean.

    Returns a `Loss` as JSON for each metric. For means, SCORES is a numpy array [1 + evaluations,
    n]: each document's score in base and in every evaluation.
    """
    base = _values_by_task(tasks, before)
    evaluations = [_values_by_task(tasks, samples) for samples in changed]
    by_task: dict[str, Any] = {}
    for name, task in tasks.items():
        by_task[name] = {}
        for metric, by_document in base[name].items():
            under_policy = [values[name][metric] for values in evaluations]
            by_task[name][metric] = _loss(by_document, under_policy, aggregation(task, metric))
    if len(tasks) > 1:
        by_task[OVER_ALL_TASKS] = {}
        for metric in _means_of_all(tasks, base):
            under_policy = [_joined(values, metric) for values in evaluations]
            by_task[OVER_ALL_TASKS][metric] = _loss(_joined(base, metric), under_policy, None)
    return by_task


ByTask = dict[str, Values]
"""The values of each document by task and `metric,filter`."""


def _values_by_task(tasks: Iterable[str], samples: Log) -> ByTask:
    """The values in the samples of each task."""
    return {name: logged_values(samples[name]) for name in tasks}


def _means_of_all(tasks: dict[str, Any], values: ByTask) -> list[str]:
    """The metrics that every task has and whose score is the mean over documents in every task,
    sorted."""
    in_every_task = set.intersection(*(set(metrics) for metrics in values.values()))
    means = []
    for metric in sorted(in_every_task):
        aggregations = [aggregation(task, metric) for task in tasks.values()]
        if all(aggregate is None for aggregate in aggregations):  # None: the mean
            means.append(metric)
    return means


def _joined(values: ByTask, metric: str) -> dict[Any, Any]:
    """The documents of all tasks as one sample."""
    joined = {}
    for task, metrics in values.items():
        for document, value in metrics[metric].items():
            joined[task, document] = value
    return joined


def _loss(
    base: dict[Any, Any], evaluations: Sequence[dict[Any, Any]], aggregate: Aggregate | None
) -> dict[str, Any]:
    """The `Loss` of a metric as JSON, from its values by document.

    Args:
        base: under the unchanged routing.
        evaluations: under the policy.
        aggregate: from these values to a score; None: the mean.
    """
    score: Callable[[list[Any]], Any] = np.mean if aggregate is None else aggregate
    base_values = [base[document] for document in base]
    base_score = float(score(base_values))
    changed_values = []
    changed_scores = []
    for by_document in evaluations:
        values = [by_document[document] for document in base]
        changed_values.append(values)
        changed_scores.append(float(score(values)))

    interval = interval_of_difference(changed_values, [base_values], aggregate)
    if interval is not None:
        low, high = interval
        interval = 0.0 - high, 0.0 - low  # no -0.0
    loss = Loss(
        n=len(base),
        base=base_score,
        changed=float(np.mean(changed_scores)),
        # exactly 0 where nothing changed
        difference=float(np.mean([base_score - changed for changed in changed_scores])),
        interval=interval,
        runs=[paired(base_values, values, aggregate) for values in changed_values],
    ).to_json()
    if aggregate is None:
        loss[SCORES] = np.asarray([base_values, *changed_values], dtype=float)
    return loss
