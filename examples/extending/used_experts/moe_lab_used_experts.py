"""Used Experts: how many experts of a layer are selected at all, in bits.

L = MoE layers, E = experts (of the layer with the most).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moe_lab.metrics.registry import CountedMetric


def used_experts(selections: np.ndarray, experts: Sequence[int]) -> np.ndarray:
    """[..., L, E] counts of selections -> [..., L]: log2 of the experts with a count; a layer without any has 0."""
    return np.log2(np.maximum((selections > 0).sum(axis=-1), 1))


METRIC = CountedMetric("Used Experts", used_experts, maximum=lambda experts: float(np.log2(experts)))
