"""The mean difference of several seeds on the same examples: one test and one interval over both.

Seeds and examples are crossed random effects: d[s, i] = mean + seed s + example i + rest. With the mean squares MS of a
two-way table, S seeds and N examples, the variance of the mean is (MS_seeds + MS_examples - MS_rest) / (S N), and
Satterthwaite's (1946) approximation gives its degrees of freedom.

S = seeds, N = examples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moe_lab.results.statistics import LEVEL, Interval

LEAST_SEEDS = 5
"""With fewer seeds the variance over them is too uncertain: the larger p of two tests is taken instead."""


@dataclass(frozen=True)
class CrossedMean:
    """A mean over seeds and examples."""

    mean: float
    interval: Interval
    """95%, Student's."""
    p: float
    """Two-sided, of the hypothesis that the mean is 0."""
    degrees: float
    """Degrees of freedom."""


def crossed_mean(values_SN: np.ndarray) -> CrossedMean | None:
    """The mean of float64 [S, N] with its uncertainty; None for fewer than `LEAST_SEEDS` seeds or two examples.

    A component of variance below 0 counts as 0. Equal values have the p 1 if they are 0, and else no uncertainty.
    """
    from scipy.stats import t

    seeds, examples = values_SN.shape
    if seeds < LEAST_SEEDS or examples < 2:
        return None
    mean = float(values_SN.mean())
    of_seeds_S, of_examples_N = values_SN.mean(axis=1), values_SN.mean(axis=0)
    rest_SN = values_SN - of_seeds_S[:, None] - of_examples_N[None, :] + mean
    df = np.array([seeds - 1, examples - 1, (seeds - 1) * (examples - 1)])
    squares = np.array(
        [
            examples * ((of_seeds_S - mean) ** 2).sum(),
            seeds * ((of_examples_N - mean) ** 2).sum(),
            (rest_SN**2).sum(),
        ]
    )
    rest = squares[2] / df[2]
    of_seeds, of_examples = (
        max(square / free, rest) for square, free in zip(squares[:2], df[:2], strict=True)
    )
    parts = np.array([of_seeds, of_examples, -rest])
    total = float(parts.sum())
    if total <= 0:
        return CrossedMean(mean, (mean, mean), 1.0 if mean == 0 else 0.0, float(df[0]))
    degrees = total**2 / float((parts**2 / df).sum())
    error = (total / values_SN.size) ** 0.5
    half = float(t.ppf((1 + LEVEL) / 2, degrees)) * error
    return CrossedMean(mean, (mean - half, mean + half), float(2 * t.sf(abs(mean) / error, degrees)), degrees)
