"""Views of stored results, which have the expert metrics of MoE-Bench and no others."""

import pytest


@pytest.fixture(autouse=True)
def stored_metrics_are_complete(four_metrics: None) -> None:
    """A stored run without a registered metric would have no table of metrics."""
