"""The accuracy lost under a routing policy, document by document (Capacity and Specialization)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moe_lab.results.paired import paired
from moe_lab.results.samples import Values, aggregation, metric_values
from moe_lab.results.statistics import Aggregate, interval_of_difference

SCORES = "scores"
Samples = dict[str, list[dict[str, Any]]]
"""lm-eval's log of samples by task."""


def losses(tasks: dict[str, Any], before: Samples, changed: Sequence[Samples]) -> dict[str, Any]:
    """The loss of each task by `metric,filter`; of several tasks also "all", the loss over all documents.

    Args:
        before: samples under the unchanged routing.
        changed: samples of one or more evaluations under a policy; the loss is the difference to their mean.

    Returns {"n", "base", "changed", "difference", "ci95", "runs"}: difference is base minus changed, above 0 where the
    policy costs accuracy; the interval is over documents. `runs` has `statistics.paired` of base and each evaluation:
    "to_right" counts the documents that only base has right, "to_wrong" those that only the evaluation has right. For
    means SCORES is a numpy array [1 + evaluations, n]: each document's score in base and in every evaluation.
    """
    base = {name: metric_values(before[name]) for name in tasks}
    others = [{name: metric_values(samples[name]) for name in tasks} for samples in changed]
    by_task: dict[str, Any] = {
        name: {
            metric: _loss(by_document, [other[name][metric] for other in others], aggregation(task, metric))
            for metric, by_document in base[name].items()
        }
        for name, task in tasks.items()
    }
    if len(tasks) > 1:
        by_task["all"] = _pooled(tasks, base, others)
    return by_task


def _pooled(
    tasks: dict[str, Any], base: dict[str, Values], others: Sequence[dict[str, Values]]
) -> dict[str, Any]:
    """The documents of all tasks as one sample, for the metrics that are means in every task."""
    shared = set.intersection(*(set(values) for values in base.values()))
    means = [m for m in sorted(shared) if all(aggregation(task, m) is None for task in tasks.values())]
    return {
        metric: _loss(_joined(base, metric), [_joined(other, metric) for other in others], None)
        for metric in means
    }


def _joined(values: dict[str, Values], metric: str) -> dict[Any, Any]:
    return {(name, d): value for name, metrics in values.items() for d, value in metrics[metric].items()}


def _loss(
    base: dict[Any, Any], others: Sequence[dict[Any, Any]], aggregate: Aggregate | None
) -> dict[str, Any]:
    documents = list(base)
    mine = [base[d] for d in documents]
    runs = [[other[d] for d in documents] for other in others]
    score = aggregate or (lambda values: float(np.mean(values)))
    before, after = float(score(mine)), [float(score(run)) for run in runs]
    limits = interval_of_difference(runs, [mine], aggregate)
    return {
        "n": len(documents),
        "base": before,
        "changed": float(np.mean(after)),
        "difference": float(np.mean([before - one for one in after])),  # exactly 0 where nothing changed
        "ci95": [0.0 - limits[1], 0.0 - limits[0]] if limits else None,  # no -0.0
        "runs": [paired(mine, run, aggregate) for run in runs],
        **({SCORES: np.asarray([mine, *runs], dtype=float)} if aggregate is None else {}),
    }
