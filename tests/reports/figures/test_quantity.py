"""Labels of axes. Broken by a metric without its unit."""

from __future__ import annotations

import pytest

from moe_lab.reports.papers.metrics import quantity


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("expert.load_balance", "load balance, bits"),
        ("expert.capacity_most", "capacity most, accuracy lost"),
        ("training.validation_loss", "nats per token"),
        ("exact_match,strict-match", "exact_match"),
    ],
)
def test_metric_and_unit(metric, label):
    assert quantity(metric) == label
