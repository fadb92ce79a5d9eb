"""What an axis of scores says: the metric and its unit."""

from __future__ import annotations

from moe_lab.reports.papers.expert_scores import EXPERT, unit_of
from moe_lab.reports.papers.training_scores import TRAINING


def quantity(metric: str) -> str:
    """An axis's label.

    >>> quantity("expert.load_balance"), quantity("acc,none")
    ('load balance, bits', 'acc')
    """
    if metric.startswith(TRAINING):
        return "nats per token"
    if not metric.startswith(EXPERT):
        return metric.partition(",")[0]
    return f"{metric.removeprefix(EXPERT).replace('_', ' ')}, {unit_of(metric)}"
