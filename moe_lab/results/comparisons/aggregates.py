"""lm-eval's functions from the values of documents to a score, by the names in a results file."""

import math
from typing import Any

from moe_lab.models.lm_eval_internals import aggregation_of_metric
from moe_lab.results.comparisons.evaluation import Evaluation
from moe_lab.results.samples import is_missing
from moe_lab.results.statistics import Aggregate


def aggregate_of(evaluation: Evaluation, task: str, metric: str) -> Aggregate | None:
    """lm-eval's function from the documents' values to a score.

    It is the one that the task's configuration names for the metric, else the metric's own.
    None for the mean, and for a metric that the configuration does not list.
    """
    from lm_eval.api import metrics
    from lm_eval.api.registry import aggregation_registry

    name = metric.partition(",")[0]
    listed = evaluation.results.configs[task].get("metric_list") or []
    entry = next((entry for entry in listed if entry.get("metric") == name), None)
    if entry is None:
        return None
    named = entry.get("aggregation")
    aggregate: Any = aggregation_registry.get(named, None) if named else aggregation_of_metric(name)
    return None if aggregate is metrics.mean else aggregate


def reproduces(evaluation: Evaluation, task: str, metric: str, aggregate: Aggregate | None) -> bool:
    """Whether the function turns the logged values into the stored score; False without values, and
    where the score or, for a mean, a value is no number."""
    name, _, filter_name = metric.partition(",")
    values = []
    for sample in evaluation.samples[task]:
        if sample.filter == filter_name and not is_missing(sample.values.get(name)):
            values.append(sample.values[name])
    stored = evaluation.results.scores(task)[metric]
    if not values or not isinstance(stored, int | float):
        return False
    if aggregate is None and not all(isinstance(value, int | float) for value in values):
        return False
    try:
        score = score_of(values, aggregate)
    except Exception:  # lm-eval writes arrays as texts, which its own functions do not take
        return False
    return math.isclose(score, stored, rel_tol=1e-6, abs_tol=1e-9)


def score_of(values: list[Any], aggregate: Aggregate | None) -> float:
    """The score of at least one value; `aggregate` None is the mean."""
    return aggregate(values) if aggregate else sum(values) / len(values)
