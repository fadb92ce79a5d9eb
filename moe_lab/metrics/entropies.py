"""Load Balance and Collaboration (MoE-Bench, section 4.1) from counts, with intervals over documents.

G = groups of documents, L = MoE layers, E = experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from moe_lab.results.statistics import LEVEL

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

    The entropy of counts ("counted") is lower than that of the frequencies that they estimate, the more so the fewer
    tokens were counted. "value" is corrected by the jackknife over groups of documents (Zahl, 1977). The interval is
    Student's with the jackknife's standard error. Both are cut to what is possible. From a single group with tokens,
    "value" is what was counted, without an interval.

    Args:
        counts: [G, L, E] or [G, L, E, E].
        most: the largest value of each layer.
    """
    counts = counts[counts.any(axis=tuple(range(1, counts.ndim)))]
    if not len(counts):
        return None
    counted_L = metric(counts.sum(axis=0, dtype=np.float64), experts)
    without_GL = _without_each(counts, experts, metric) if len(counts) > 1 else None
    layers = [
        _jackknife(float(value), without_GL[:, number] if without_GL is not None else None, limit)
        for number, (value, limit) in enumerate(zip(counted_L, most, strict=True))
    ]
    overall = without_GL.mean(axis=-1) if without_GL is not None else None
    return _jackknife(float(counted_L.mean()), overall, float(np.mean(most))) | {"layers": layers}


def _without_each(
    counts: np.ndarray, experts: Sequence[int], metric: Callable[[np.ndarray, Sequence[int]], np.ndarray]
) -> np.ndarray:
    """float64 [G, L]: the metric of all groups but one, for each one."""
    total = counts.sum(axis=0, dtype=np.float64)
    at_once = max(1, NUMBERS_AT_ONCE // total.size)
    starts = range(0, len(counts), at_once)
    return np.concatenate([metric(total - counts[start : start + at_once], experts) for start in starts])


def _jackknife(counted: float, without_G: np.ndarray | None, most: float) -> dict[str, Any]:
    """{"value", "ci95", "counted", "maximum"} from a value and those without one group each."""
    if without_G is None:
        return {"value": counted, "ci95": None, "counted": counted, "maximum": most}
    from scipy.stats import t

    G = len(without_G)
    value = G * counted - (G - 1) * float(without_G.mean())
    error = float(np.sqrt((G - 1) * without_G.var()))
    half = float(t.ppf((1 + LEVEL) / 2, G - 1)) * error
    value, low, high = (float(np.clip(bound, 0.0, most)) for bound in (value, value - half, value + half))
    return {"value": value, "ci95": [low, high], "counted": counted, "maximum": most}
