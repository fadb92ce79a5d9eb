"""Load Balance (MoE-Bench, section 4.1): how evenly a layer's experts are selected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moe_lab.metrics.entropy import entropy_bits
from moe_lab.metrics.metric import CountedMetric


def load_balance(selections: np.ndarray, experts: Sequence[int]) -> np.ndarray:
    """Per layer, the entropy of selection frequencies: [..., L, E] -> [..., L]; at most log2 of a layer's experts."""
    return entropy_bits(selections)


METRIC = CountedMetric("Load Balance", load_balance, maximum=lambda experts: float(np.log2(experts)))
