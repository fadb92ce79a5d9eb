"""Entropies of counts with intervals over documents.

G = groups of documents, L = MoE layers, E = experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from moe_lab.metrics.registry import counted_metrics
from moe_lab.results.statistics import LEVEL

NUMBERS_AT_ONCE = 2**24


def entropies_of(pairs_GLEE: np.ndarray, experts: Sequence[int]) -> dict[str, Any]:
    """Every counted metric as `measured` gives it; the diagonal holds selections of single experts."""
    selections_GLE = np.diagonal(pairs_GLEE, axis1=-2, axis2=-1)
    return {
        name: measured(
            pairs_GLEE if metric.of_pairs else selections_GLE,
            experts,
            metric.of_layers,
            [metric.maximum(count) for count in experts],
        )
        for name, metric in counted_metrics().items()
    }


def measured(
    counts: np.ndarray,
    experts: Sequence[int],
    metric: Callable[[np.ndarray, Sequence[int]], np.ndarray],
    most: Sequence[float],
) -> dict[str, Any] | None:
    """The metric's mean over layers and each layer's value, with 95% intervals; None where nothing was counted.

    The entropy of counts ("counted") underestimates the entropy of the frequencies, the more so the fewer tokens are
    counted. "value" is corrected by the jackknife over groups of documents (Zahl, 1977). The interval is Student's with
    the jackknife's standard error. Both are clipped to the possible values. With a single group of tokens, "value" is
    "counted" and has no interval.

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
    """float64 [G, L]: for each group, the metric of all other groups."""
    total = counts.sum(axis=0, dtype=np.float64)
    at_once = max(1, NUMBERS_AT_ONCE // total.size)
    starts = range(0, len(counts), at_once)
    return np.concatenate([metric(total - counts[start : start + at_once], experts) for start in starts])


def _jackknife(counted: float, without_G: np.ndarray | None, most: float) -> dict[str, Any]:
    """{"value", "ci95", "counted", "maximum"} from the value of all groups and the values without each group."""
    if without_G is None:
        return {"value": counted, "ci95": None, "counted": counted, "maximum": most}
    from scipy.stats import t

    G = len(without_G)
    value = G * counted - (G - 1) * float(without_G.mean())
    error = float(np.sqrt((G - 1) * without_G.var()))
    half = float(t.ppf((1 + LEVEL) / 2, G - 1)) * error
    value, low, high = (float(np.clip(bound, 0.0, most)) for bound in (value, value - half, value + half))
    return {"value": value, "ci95": [low, high], "counted": counted, "maximum": most}
