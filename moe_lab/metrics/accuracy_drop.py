"""Accuracy lost under a policy, document by document: what Capacity and Specialization are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moe_lab.results.samples import Values, aggregation, metric_values
from moe_lab.results.statistics import Aggregate, interval_of_difference, paired

Samples = dict[str, list[dict[str, Any]]]
"""Per task, lm-eval's log of its documents."""


def losses(tasks: dict[str, Any], before: Samples, changed: Sequence[Samples]) -> dict[str, Any]:
    """What each task loses, by `metric,filter`; over all documents too, under "all", where there are several tasks.

    Args:
        before: of the untouched model.
        changed: of one or more evaluations of the same documents under a policy; the loss is to their mean.

    Returns {"n", "base", "changed", "difference", "ci95", "runs"}: difference is base minus changed, above 0 where the
    policy costs accuracy; the interval is over documents; `runs` has `statistics.paired` of base and each evaluation,
    in which "to_right" counts the documents that base alone has right, "to_wrong" those that the policy alone has.
    """
    base = {name: metric_values(before[name]) for name in tasks}
    others = [{name: metric_values(samples[name]) for name in tasks} for samples in changed]
    found: dict[str, Any] = {
        name: {
            metric: _loss(by_document, [other[name][metric] for other in others], aggregation(task, metric))
            for metric, by_document in base[name].items()
        }
        for name, task in tasks.items()
    }
    if len(tasks) > 1:
        found["all"] = _pooled(tasks, base, others)
    return found


def _pooled(
    tasks: dict[str, Any], base: dict[str, Values], others: Sequence[dict[str, Values]]
) -> dict[str, Any]:
    """The documents of all tasks as one sample, for metrics that all of them have and that are means."""
    shared = set.intersection(*(set(values) for values in base.values()))
    means = [m for m in sorted(shared) if all(aggregation(task, m) is None for task in tasks.values())]
    return {
        metric: _loss(_joined(base, metric), [_joined(other, metric) for other in others], None)
        for metric in means
    }


def _joined(values: dict[str, Values], metric: str) -> dict[Any, Any]:
    return {(name, d): value for name, found in values.items() for d, value in found[metric].items()}


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
    }
