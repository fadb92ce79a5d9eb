"""Collaboration (MoE-Bench, section 4.1): with how many other experts an expert is selected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moe_lab.metrics.entropy import entropy_bits
from moe_lab.metrics.metric import CountedMetric


def collaboration(pairs: np.ndarray, experts: Sequence[int]) -> np.ndarray:
    """Per layer, the mean over experts i of the entropy of P(j | i), j != i: [..., L, E, E] -> [..., L].

    P(j | i) is the share of j among all experts that were selected together with i. An expert that was selected with
    none counts 0. At most log2(E - 1).
    """
    others = pairs * (1 - np.eye(pairs.shape[-1]))
    return entropy_bits(others).sum(axis=-1) / np.asarray(experts)


METRIC = CountedMetric(
    "Collaboration",
    collaboration,
    maximum=lambda experts: float(np.log2(max(1, experts - 1))),
    of_pairs=True,
)
