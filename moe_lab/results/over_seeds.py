"""Tests over the seeds of a run, and over seeds and examples at once.

Seeds and examples are crossed random effects: d[s, i] = mean + seed s + example i + rest. With the
mean squares MS of a two-way table, S seeds and N examples, the variance of the mean is (MS_seeds +
MS_examples - MS_rest) / (S N), and Satterthwaite's (1946) approximation gives its degrees of
freedom.

S = seeds, N = examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moe_lab.results.statistics import LEVEL, are_equal
from moe_lab.results.stored import Interval

LEAST_SEEDS = 5
"""With fewer seeds the variance over them is too uncertain: the larger p of two tests is taken
instead."""


def p_over_seeds(differences: Sequence[float]) -> float | None:
    """Two-sided p of Student's paired test: whether the mean of the seeds' differences is 0.

    None for fewer than two seeds, and for equal differences other than 0, whose spread is unknown.
    Differences that differ by rounding alone are equal.
    """
    from scipy.stats import ttest_1samp

    if len(differences) < 2:
        return None
    if are_equal(differences):
        return 1.0 if are_equal([*differences, 0.0]) else None
    return float(ttest_1samp(differences, 0).pvalue)


@dataclass(frozen=True)
class CrossedMean:
    """A mean over seeds and examples."""

    mean: float
    interval: Interval
    """95%, Student's."""
    p: float
    """Two-sided, of the hypothesis that the mean is 0."""


def crossed_mean(values_SN: np.ndarray) -> CrossedMean | None:
    """The mean of float64 [S, N] with its uncertainty; None for fewer than `LEAST_SEEDS` seeds or
    two examples.

    A component of variance below 0 counts as 0. Equal values have the p 1 if they are 0, and else
    no uncertainty.
    """
    from scipy.special import stdtr, stdtrit

    S, N = values_SN.shape
    if S < LEAST_SEEDS or N < 2:
        return None
    mean = float(values_SN.mean())
    mean_S = values_SN.mean(axis=1)
    mean_N = values_SN.mean(axis=0)
    rest_SN = values_SN - mean_S[:, None] - mean_N[None, :] + mean
    degrees = np.array([S - 1, N - 1, (S - 1) * (N - 1)])
    square_of_seeds = N * ((mean_S - mean) ** 2).sum() / degrees[0]
    square_of_examples = S * ((mean_N - mean) ** 2).sum() / degrees[1]
    square_of_rest = (rest_SN**2).sum() / degrees[2]
    parts = np.array(
        [
            max(square_of_seeds, square_of_rest),
            max(square_of_examples, square_of_rest),
            -square_of_rest,
        ]
    )
    total = float(parts.sum())
    if total <= 0:
        return CrossedMean(mean, (mean, mean), 1.0 if mean == 0 else 0.0)
    degrees_of_mean = total**2 / float((parts**2 / degrees).sum())
    error = (total / values_SN.size) ** 0.5
    half = float(stdtrit(degrees_of_mean, (1 + LEVEL) / 2)) * error
    p = float(2 * stdtr(degrees_of_mean, -abs(mean) / error))
    return CrossedMean(mean, (mean - half, mean + half), p)
