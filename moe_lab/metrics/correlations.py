"""Correlations between the expert metrics of a training (MoE-Bench, section 4.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from moe_lab.metrics.registry import counted_metrics, interventions, metrics
from moe_lab.results.statistics import LEVEL

FEWEST = 3
"""Measurements that a correlation needs: two points always lie on a line."""
FEWEST_WITH_INTERVAL = 4


def blocks_of(line: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """{"value", "ci95"} of every metric in one measurement; empty for a metric without a value. Capacity has two."""
    counted = {name: line[name] or {} for name in counted_metrics()}
    changed = {each.name: each.block(line[of]) if line[of] else {} for of, each in interventions()}
    return counted | changed


def labels() -> dict[str, str]:
    """The names of `blocks_of`'s metrics in figures."""
    counted = {name: metric.label for name, metric in counted_metrics().items()}
    changed = {
        each.name: metrics()[of].label + (f", {each.key} activated" if each.key else "")
        for of, each in interventions()
    }
    return counted | changed


def values_of(line: dict[str, Any]) -> dict[str, float | None]:
    """The metrics of one measurement."""
    return {name: block.get("value") for name, block in blocks_of(line).items()}


def correlations(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The correlation of every pair of metrics over the measurements of one training.

    Each is {"of", "n", "pearson", "ci95", "spearman", "note"}. n is the number of measurements. The interval is
    Fisher's, for four measurements or more; it is too narrow, because successive measurements depend on each other.
    `note` is the reason for a missing number.
    """
    series = [values_of(line) for line in lines]
    return [
        _correlation(one, other, [(point[one], point[other]) for point in series])
        for one, other in combinations(series[0], 2)
    ]


def _correlation(one: str, other: str, points: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    from scipy.stats import spearmanr

    pairs = np.array([point for point in points if None not in point], dtype=float).reshape(-1, 2)
    result: dict[str, Any] = {"of": [one, other], "n": len(pairs), "pearson": None, "ci95": None}
    result |= {"spearman": None, "note": None}
    if len(pairs) < FEWEST:
        return result | {"note": f"fewer than {FEWEST} measurements"}
    if (np.ptp(pairs, axis=0) == 0).any():
        return result | {"note": "one of the two does not change"}
    r = float(np.clip(np.corrcoef(pairs.T)[0, 1], -1, 1))
    return result | {"pearson": r, "ci95": _fisher(r, len(pairs)), "spearman": float(spearmanr(*pairs.T)[0])}


def _fisher(r: float, n: int) -> list[float] | None:
    from scipy.stats import norm

    if n < FEWEST_WITH_INTERVAL or abs(r) == 1:
        return None
    half = float(norm.ppf((1 + LEVEL) / 2)) / math.sqrt(n - 3)
    return [math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)]
