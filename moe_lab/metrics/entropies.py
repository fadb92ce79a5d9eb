"""Load Balance and Collaboration (MoE-Bench, section 4.1) from counts, with intervals over documents.

G = groups of documents, R = resamples, L = MoE layers, E = experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from moe_lab.results.statistics import LEVEL, SEED

RESAMPLES = 500
NUMBERS_AT_ONCE = 2**24


def entropy_bits(counts: np.ndarray) -> np.ndarray:
    """Entropy in bits over the last axis; 0 where nothing was counted."""
    total = counts.sum(axis=-1, keepdims=True)
    share = counts / np.where(total > 0, total, 1)
    return -(share * np.log2(np.where(share > 0, share, 1.0))).sum(axis=-1)


def load_balance(selections: np.ndarray, experts: Sequence[int]) -> np.ndarray:
    """Per layer, the entropy of selection frequencies: [..., L, E] -> [..., L]; at most log2 of a layer's experts."""
    return entropy_bits(selections)


def collaboration(pairs: np.ndarray, experts: Sequence[int]) -> np.ndarray:
    """Per layer, the mean over experts i of the entropy of P(j | i), j != i: [..., L, E, E] -> [..., L].

    P(j | i) is the share of j among all experts that were selected together with i. An expert that was selected with
    none counts 0. At most log2(E - 1).
    """
    others = pairs * (1 - np.eye(pairs.shape[-1]))
    return entropy_bits(others).sum(axis=-1) / np.asarray(experts)


def entropies_of(pairs_GLEE: np.ndarray, experts: Sequence[int]) -> dict[str, Any]:
    """{"load_balance", "collaboration"} as `measured` gives them; the diagonal holds selections of single experts."""
    selections_GLE = np.diagonal(pairs_GLEE, axis1=-2, axis2=-1)
    balanced = [float(np.log2(count)) for count in experts]
    spread = [float(np.log2(max(1, count - 1))) for count in experts]
    return {
        "load_balance": measured(selections_GLE, experts, load_balance, balanced),
        "collaboration": measured(pairs_GLEE, experts, collaboration, spread),
    }


def measured(
    counts: np.ndarray,
    experts: Sequence[int],
    metric: Callable[[np.ndarray, Sequence[int]], np.ndarray],
    most: Sequence[float],
) -> dict[str, Any] | None:
    """The metric's mean over layers and each layer's value, with 95% intervals; None where nothing was counted.

    Intervals resample the G groups. They are reverse percentile intervals (2 x value - quantile), because an entropy
    of counts is too low by about as much as that of resampled counts is lower still; cut to what is possible.

    Args:
        counts: [G, L, E] or [G, L, E, E].
        most: the largest value of each layer.
    """
    if not counts.any():
        return None
    value_L = metric(counts.sum(axis=0, dtype=np.float64), experts)
    value = float(value_L.mean())
    found: dict[str, Any] = {"value": value, "ci95": None, "maximum": float(np.mean(most))}
    found["layers"] = [
        {"value": float(v), "ci95": None, "maximum": m} for v, m in zip(value_L, most, strict=True)
    ]
    if len(counts) > 1:
        drawn_RL = _resampled(counts, experts, metric)
        found["ci95"] = _interval(value, drawn_RL.mean(axis=-1), found["maximum"])
        for number, layer in enumerate(found["layers"]):
            layer["ci95"] = _interval(layer["value"], drawn_RL[:, number], layer["maximum"])
    return found


def _resampled(
    counts: np.ndarray, experts: Sequence[int], metric: Callable[[np.ndarray, Sequence[int]], np.ndarray]
) -> np.ndarray:
    """float64 [RESAMPLES, L]; resamples in which nothing was counted are left out."""
    G = len(counts)
    weights_RG = np.random.default_rng(SEED).multinomial(G, np.full(G, 1 / G), size=RESAMPLES)
    flat = counts.reshape(G, -1).astype(np.float32)  # whole numbers up to 2**24 are exact
    at_once = max(1, NUMBERS_AT_ONCE // flat.shape[1])
    drawn = []
    for start in range(0, RESAMPLES, at_once):
        sums = weights_RG[start : start + at_once].astype(np.float32) @ flat
        sums = sums[sums.any(axis=-1)]
        drawn.append(metric(sums.reshape(len(sums), *counts.shape[1:]), experts))
    return np.concatenate(drawn)


def _interval(value: float, drawn_R: np.ndarray, most: float) -> list[float]:
    low, high = np.quantile(drawn_R, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [float(np.clip(2 * value - bound, 0.0, most)) for bound in (high, low)]
