"""lm-eval's scores of a task: their keys, and the functions that compute them."""

from collections.abc import Mapping
from typing import Any

from moe_lab.models.lm_eval_internals import aggregation_of_metric, plain_aggregation
from moe_lab.results.statistics import Aggregate

PLACEHOLDER = "bypass"
"""lm-eval's metric with predict_only=true; its value is always 999."""


def reported(scores: Mapping[str, Any]) -> list[str]:
    """The `metric,filter` keys of a task's scores, without standard errors, counts and the
    placeholder."""
    keys = [key for key in scores if "," in key and "_stderr," not in key]
    return [key for key in keys if key.partition(",")[0] != PLACEHOLDER]


def headline_of(metric: str | None, scores: Mapping[str, Any]) -> str | None:
    """The headline metric of a run: `metric` where it was asked for, else the first that the scores
    of its first task report.

    None with predict_only, whose tasks report no metric.
    """
    reported_metrics = reported(scores)
    if not reported_metrics:
        return None
    return metric or reported_metrics[0]


def is_mean(config: Mapping[str, Any], metric: str) -> bool:
    """Whether a task's score is the mean of its examples' values, for example of 0 and 1.

    Args:
        config: of the task, as results.json has it. Metrics that it does not list are means, as a
            judge's are.
        metric: lm-eval's `metric,filter`.
    """
    from lm_eval.api.metrics import mean

    name = metric.partition(",")[0]
    for entry in config.get("metric_list") or []:
        if entry.get("metric") == name and entry.get("aggregation") is not None:
            return bool(entry["aggregation"] == "mean")
    return aggregation_of_metric(name) in (None, mean)


def aggregation(task: Any, metric: str) -> Aggregate | None:
    """lm-eval's function from a metric's values to the score; None for the mean."""
    from lm_eval.api.metrics import mean

    function = task.aggregation().get(metric.partition(",")[0], mean)
    return None if function is mean else plain_aggregation(function)
