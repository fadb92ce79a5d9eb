"""Counted metrics (Load Balance and Collaboration): the entropies of layers with 95% intervals over
documents.

G = groups of documents that the jackknife leaves out in turn, L = MoE layers, E = experts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from moe_lab.metrics.intervals import jackknife
from moe_lab.metrics.registry import counted_metrics
from moe_lab.results.measured import Value

LEFT_OUT = "left_out"
"""The key of a counted metric's array: its value, and its value without each group."""
NUMBERS_AT_ONCE = 2**24
"""The most counts of which the entropies are computed together."""


class Entropy(Value):
    """An entropy in bits: of a layer, or the mean over layers."""

    counted: float | None = None
    """Before the correction."""
    maximum: float | None = None


def entropies_of(pairs_GLEE: np.ndarray, experts: Sequence[int]) -> dict[str, Any]:
    """Every counted metric as `mean_over_layers` returns it.

    Args:
        pairs_GLEE: how often two experts are selected together; the diagonal holds selections of
            single experts.
    """
    selections_GLE = np.diagonal(pairs_GLEE, axis1=-2, axis2=-1)
    entropies = {}
    for name, metric in counted_metrics().items():
        counts = pairs_GLEE if metric.of_pairs else selections_GLE
        maxima = [metric.maximum(count) for count in experts]
        entropies[name] = mean_over_layers(counts, experts, metric.of_layers, maxima)
    return entropies


def mean_over_layers(
    counts: np.ndarray,
    experts: Sequence[int],
    metric: Callable[[np.ndarray, Sequence[int]], np.ndarray],
    maxima: Sequence[float],
) -> dict[str, Any] | None:
    """The metric's mean over layers and each layer's value, with 95% intervals: an `Entropy` as
    JSON, with "layers" (an `Entropy` of each layer) and LEFT_OUT. None if nothing was counted.

    The entropy of counts ("counted") underestimates the entropy of the frequencies; the bias grows
    as fewer tokens are counted. "value" is corrected by the jackknife over groups of documents
    (Zahl, 1977). The interval is Student's with the jackknife's standard error. Both are clipped to
    the possible values. With a single group of tokens, "value" is "counted" and has no interval.
    LEFT_OUT is a numpy array [1 + G]: "counted", then the value without each group, NaN for a group
    without tokens.

    Args:
        counts: [G, L, E] or [G, L, E, E].
        experts: the number of experts of each layer.
        metric: (counts [..., L, E] or [..., L, E, E], `experts`) -> the value of each layer, [...,
            L].
        maxima: the largest possible value of each layer.
    """
    has_tokens_G = np.asarray(counts.any(axis=tuple(range(1, counts.ndim))))
    counts = counts[has_tokens_G]
    if not len(counts):
        return None
    total = counts.sum(axis=0, dtype=np.float64)
    counted_L = _of_layers(metric, total, experts, (len(experts),))
    without_GL = _without_each_group(counts, total, experts, metric)

    layers = []
    for layer, (counted, maximum) in enumerate(zip(counted_L, maxima, strict=True)):
        without_G = None
        if without_GL is not None:
            without_G = without_GL[:, layer]
        layers.append(_corrected(float(counted), without_G, maximum).to_json())

    mean_without_G = None
    left_out = np.full(1 + len(has_tokens_G), np.nan)
    left_out[0] = counted_L.mean()
    if without_GL is not None:
        mean_without_G = without_GL.mean(axis=-1)
        left_out[1:][has_tokens_G] = mean_without_G
    mean = _corrected(float(left_out[0]), mean_without_G, float(np.mean(maxima)))
    return mean.to_json() | {"layers": layers, LEFT_OUT: left_out}


def _without_each_group(
    counts: np.ndarray,
    total: np.ndarray,
    experts: Sequence[int],
    metric: Callable[[np.ndarray, Sequence[int]], np.ndarray],
) -> np.ndarray | None:
    """[G, L]: each layer's value without each group; None for a single group."""
    if len(counts) == 1:
        return None
    groups_at_once = max(1, NUMBERS_AT_ONCE // total.size)
    parts = []
    for start in range(0, len(counts), groups_at_once):
        left_out = counts[start : start + groups_at_once]
        shape = (len(left_out), len(experts))
        parts.append(_of_layers(metric, total - left_out, experts, shape))
    return np.concatenate(parts)


def _of_layers(
    metric: Callable[[np.ndarray, Sequence[int]], np.ndarray],
    counts: np.ndarray,
    experts: Sequence[int],
    shape: tuple[int, ...],
) -> np.ndarray:
    """The metric of each layer. Raises ValueError for a function that returns another shape."""
    values = metric(counts, experts)
    if np.shape(values) != shape:
        raise ValueError(
            f"{metric.__name__} returned the shape {np.shape(values)} for counts of the shape "
            f"{counts.shape}: expected {shape}, one value for each layer."
        )
    return values


def _corrected(counted: float, without_G: np.ndarray | None, maximum: float) -> Entropy:
    """The entropy from the value of all groups and the values without each group."""
    if without_G is None:
        return Entropy(value=counted, counted=counted, maximum=maximum)
    value, (low, high) = jackknife(counted, without_G)
    return Entropy(
        value=_clipped(value, maximum),
        interval=(_clipped(low, maximum), _clipped(high, maximum)),
        counted=counted,
        maximum=maximum,
    )


def _clipped(value: float, maximum: float) -> float:
    return float(np.clip(value, 0.0, maximum))
