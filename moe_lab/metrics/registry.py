"""The expert metrics by their names in files. A metric is a line here and a module with `METRIC`."""

from __future__ import annotations

from moe_lab.metrics import capacity, collaboration, load_balance, specialization
from moe_lab.metrics.metric import CountedMetric, Intervention, InterventionMetric

METRICS: dict[str, CountedMetric | InterventionMetric] = {
    "load_balance": load_balance.METRIC,
    "collaboration": collaboration.METRIC,
    "capacity": capacity.METRIC,
    "specialization": specialization.METRIC,
}


def counted_metrics() -> dict[str, CountedMetric]:
    return {name: metric for name, metric in METRICS.items() if isinstance(metric, CountedMetric)}


def intervention_metrics() -> dict[str, InterventionMetric]:
    return {name: metric for name, metric in METRICS.items() if isinstance(metric, InterventionMetric)}


def interventions() -> list[tuple[str, Intervention]]:
    """Every intervention with the name of its metric."""
    return [(name, each) for name, metric in intervention_metrics().items() for each in metric.interventions]


def evaluations() -> int:
    """How often `metrics=expert` evaluates a run's documents again."""
    return sum(metric.evaluations for metric in intervention_metrics().values())
