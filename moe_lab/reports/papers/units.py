"""The units of the numbers in a paper's table."""

from moe_lab.metrics.registry import counted_metrics
from moe_lab.reports.papers.metric_names import EXPERT
from moe_lab.reports.papers.training_scores import TRAINING


def unit_of(metric: str) -> str:
    """The unit of an expert metric: bits, or "accuracy lost" for an intervention."""
    counted = counted_metrics().get(metric.removeprefix(EXPERT))
    if counted is None:
        return "accuracy lost"
    return counted.unit


def quantity(metric: str) -> str:
    """The label of an axis of scores: the metric and its unit.

    >>> quantity("expert.load_balance"), quantity("acc,none")
    ('load balance, bits', 'acc')
    """
    if metric.startswith(TRAINING):
        return "nats per token"
    if not metric.startswith(EXPERT):
        return metric.partition(",")[0]
    name = metric.removeprefix(EXPERT).replace("_", " ")
    return f"{name}, {unit_of(metric)}"
