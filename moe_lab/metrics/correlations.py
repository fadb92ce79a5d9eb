"""Correlations between the expert metrics of a training (MoE-Bench, section 4.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from moe_lab.metrics.registry import counted_metrics, interventions, metrics
from moe_lab.results.measured import Interval, Measured, Value
from moe_lab.results.statistics import LEVEL

FEWEST = 3
"""Measurements that a correlation needs: two points always lie on a line."""
FEWEST_WITH_INTERVAL = 4


@dataclass(frozen=True)
class Correlation(Measured):
    """Of two metrics over the measurements of one training."""

    of: list[str]
    n: int
    """Measurements in which both have a value."""
    pearson: float | None = None
    interval: Interval | None = None
    """Fisher's, for four measurements or more; too narrow, because successive measurements depend on each other."""
    spearman: float | None = None
    note: str | None = None
    """The reason for a missing number."""


def values_of(line: dict[str, Any]) -> dict[str, Value]:
    """Every metric in one measurement. Capacity has two."""
    counted = {name: line[name] or {} for name in counted_metrics()}
    changed = {each.name: each.block(line[of]) if line[of] else {} for of, each in interventions()}
    return {name: Value.from_json({"value": None} | block) for name, block in (counted | changed).items()}


def labels() -> dict[str, str]:
    """The names of `values_of`'s metrics in figures."""
    counted = {name: metric.label for name, metric in counted_metrics().items()}
    changed = {
        each.name: metrics()[of].label + (f", {each.key} activated" if each.key else "")
        for of, each in interventions()
    }
    return counted | changed


def correlations(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The correlation of every pair of metrics over the measurements of one training.

    Each is a `Correlation` as JSON.
    """
    series = [values_of(line) for line in lines]
    return [
        _correlation(one, other, [(point[one].value, point[other].value) for point in series]).to_json()
        for one, other in combinations(series[0], 2)
    ]


def _correlation(one: str, other: str, points: Sequence[tuple[Any, Any]]) -> Correlation:
    from scipy.stats import spearmanr

    pairs = np.array([point for point in points if None not in point], dtype=float).reshape(-1, 2)
    result = Correlation([one, other], len(pairs))
    if len(pairs) < FEWEST:
        return replace(result, note=f"fewer than {FEWEST} measurements")
    if (np.ptp(pairs, axis=0) == 0).any():
        return replace(result, note="one of the two does not change")
    r = float(np.clip(np.corrcoef(pairs.T)[0, 1], -1, 1))
    return replace(result, pearson=r, interval=_fisher(r, len(pairs)), spearman=float(spearmanr(*pairs.T)[0]))


def _fisher(r: float, n: int) -> Interval | None:
    from scipy.stats import norm

    if n < FEWEST_WITH_INTERVAL or abs(r) == 1:
        return None
    half = float(norm.ppf((1 + LEVEL) / 2)) / math.sqrt(n - 3)
    return math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)
