"""Correlations between the expert metrics of a training (MoE-Bench, section 4.2)."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from moe_lab.metrics.registry import values_of
from moe_lab.results.measured import Ci95, Measured
from moe_lab.results.statistics import LEVEL

FEWEST = 3
"""The number of measurements that a correlation needs: two points always lie on a line."""


class Correlation(Measured):
    """The correlation of two metrics over the measurements of one training."""

    of: list[str]
    n: int
    """The number of measurements in which both metrics have a value."""
    pearson: float | None = None
    interval: Ci95 = None
    """Fisher's interval, for four measurements or more. Too narrow, because successive measurements
    are dependent."""
    spearman: float | None = None
    note: str | None = None
    """The reason for a missing number."""


def correlations(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The correlation of every pair of metrics over the measurements of one training.

    Each is a `Correlation` as JSON.

    Args:
        lines: of expert_metrics.jsonl, at least one.
    """
    measurements = [values_of(line) for line in lines]
    of_pairs = []
    for x, y in combinations(measurements[0], 2):
        points = []
        for values in measurements:
            x_value = values[x].value
            y_value = values[y].value
            if x_value is not None and y_value is not None:
                points.append((x_value, y_value))
        of_pairs.append(_correlation(x, y, points).to_json())
    return of_pairs


def _correlation(x: str, y: str, points: Sequence[tuple[float, float]]) -> Correlation:
    """The correlation of the metrics `x` and `y` over measurements of both."""
    from scipy.stats import pearsonr, spearmanr

    names = [x, y]
    count = len(points)
    if count < FEWEST:
        return Correlation(of=names, n=count, note=f"fewer than {FEWEST} measurements")
    x_N, y_N = np.array(points, dtype=float).T
    if np.ptp(x_N) == 0 or np.ptp(y_N) == 0:
        return Correlation(of=names, n=count, note="one of the two does not change")
    pearson = pearsonr(x_N, y_N)
    interval = None
    if count > FEWEST and abs(pearson.statistic) < 1:
        low, high = pearson.confidence_interval(LEVEL)
        interval = float(low), float(high)
    return Correlation(
        of=names,
        n=count,
        pearson=float(pearson.statistic),
        interval=interval,
        spearman=float(spearmanr(x_N, y_N)[0]),
    )
