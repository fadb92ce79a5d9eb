"""Statistical significance: paired tests over examples, over seeds, and over both, and Holm's correction."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import eq, gt
from typing import Any

import numpy as np

from moe_lab.results.measured import Paired
from moe_lab.results.statistics import (
    LEVEL,
    SEED,
    SLOW_RESAMPLES,
    Aggregate,
    are_equal,
    difference_of,
    interval_of_difference,
    is_binary,
    likelihood_terms,
    mcnemar,
    score_of_draw,
)
from moe_lab.results.stored import Interval

ALPHA = 0.05
"""A difference is significant where its corrected p is below this."""
SWAPS = 9999
"""Random swaps of a test of means; its smallest p is 1 / (SWAPS + 1)."""
SLOW_SWAPS = SLOW_RESAMPLES - 1
"""Random swaps of a test with an `aggregate` that is not the mean."""


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's (1979) corrected p-values of the tests of one table, in their order.

    If those below 0.05 are taken for differences, the chance that any of them is none is at most 5%, whatever the
    dependence between the tests. None stands for no test: it stays None and does not count.
    """
    tested = np.array([p for p in p_values if p is not None])
    order = np.argsort(tested)
    # The numbers of statsmodels' multipletests, which collects garbage at every call: 0.2 seconds and more.
    stepped = np.maximum.accumulate(np.arange(len(tested), 0, -1) * tested[order]).clip(max=1.0)
    corrected = iter(stepped[np.argsort(order)].tolist())
    return [None if p is None else next(corrected) for p in p_values]


def p_over_seeds(differences: Sequence[float]) -> float | None:
    """Two-sided p of Student's paired test: whether the mean of the seeds' differences is 0.

    None for fewer than two seeds, and for equal differences other than 0, whose spread is unknown. Differences that
    differ by rounding alone are equal.
    """
    from scipy.stats import ttest_1samp

    if len(differences) < 2:
        return None
    if are_equal(differences):
        return 1.0 if are_equal([*differences, 0.0]) else None
    return float(ttest_1samp(differences, 0).pvalue)


def randomization_test(
    values: Sequence[Any], baseline: Sequence[Any], aggregate: Aggregate | None = None
) -> float:
    """Two-sided p of the difference of two scores over the same documents (Noreen, 1989), seeded.

    Under the null hypothesis each document's two values may be swapped. p is the share of random swaps whose
    difference is at least as far from 0 as the observed one, which counts as one of them. For 0/1 scores McNemar's
    test is the exact form of it. Perplexities are tested by their log-likelihoods.

    Args:
        aggregate: the function from the documents' values to the score; None is the mean.
    """
    if aggregate is not None and (both := log_likelihoods(values, baseline, aggregate)):
        return randomization_test(*both)
    if aggregate is None:
        differences = _swapped_sums(values, baseline)
    else:
        differences = np.array(list(_swapped_differences(values, baseline, aggregate)))
    observed, swapped = abs(differences[0]), np.abs(differences[1:])
    rounding = 1e-12 * max(observed, float(swapped.max(initial=0.0)))
    # 1 where a value is NaN
    return float((1 + np.sum(~(swapped < observed - rounding))) / len(differences))


def log_likelihoods(
    values: Sequence[Any], baseline: Sequence[Any], aggregate: Aggregate
) -> tuple[list[float], list[float]] | None:
    """The documents' log-likelihoods, where `aggregate` is a perplexity of lm-eval; else None.

    The sum of both runs' log-likelihoods stays the same whatever is swapped, and both have the same words. The distance
    of two perplexities then grows with that of the log-likelihoods, so that a test of either has the same p.
    """
    mine, theirs = likelihood_terms(values, aggregate), likelihood_terms(baseline, aggregate)
    if mine is None or theirs is None or (mine[1] != theirs[1]).any():
        return None
    return mine[0].tolist(), theirs[0].tolist()


def _swapped_sums(values: Sequence[Any], baseline: Sequence[Any]) -> np.ndarray:
    """The sum of the documents' differences, then the sums after random swaps, float64 [1 + SWAPS]."""
    differences = np.asarray(values, dtype=float) - np.asarray(baseline, dtype=float)
    changed = differences[differences != 0]  # a swap of equal values changes nothing
    random = np.random.default_rng(SEED)
    at_once = max(1, 2**20 // max(1, len(changed)))  # 8 MiB
    sizes = [min(at_once, SWAPS - start) for start in range(0, SWAPS, at_once)]
    signs = (1 - 2.0 * random.integers(2, size=(n, len(changed)), dtype=np.int8) for n in sizes)
    return np.concatenate([[changed.sum()], *(each @ changed for each in signs)])


def _swapped_differences(
    values: Sequence[Any], baseline: Sequence[Any], aggregate: Aggregate
) -> Iterator[float]:
    """The observed difference of the aggregates, then those after random swaps."""
    random = np.random.default_rng(SEED)
    pairs = list(zip(values, baseline, strict=True))
    nothing = np.zeros(len(pairs), dtype=int)
    for swap in [nothing, *(random.integers(2, size=len(pairs)) for _ in range(SLOW_SWAPS))]:
        mine, theirs = (
            [pair[side ^ one] for pair, one in zip(pairs, swap, strict=True)] for side in (0, 1)
        )
        yield score_of_draw(aggregate, mine) - score_of_draw(aggregate, theirs)


# The mean difference of several seeds on the same examples: one test and one interval over both
#
# Seeds and examples are crossed random effects: d[s, i] = mean + seed s + example i + rest. With the mean squares MS
# of a two-way table, S seeds and N examples, the variance of the mean is (MS_seeds + MS_examples - MS_rest) / (S N),
# and Satterthwaite's (1946) approximation gives its degrees of freedom.
#
# S = seeds, N = examples.

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


def crossed_mean(values_SN: np.ndarray) -> CrossedMean | None:
    """The mean of float64 [S, N] with its uncertainty; None for fewer than `LEAST_SEEDS` seeds or two examples.

    A component of variance below 0 counts as 0. Equal values have the p 1 if they are 0, and else no uncertainty.
    """
    from scipy.special import stdtr, stdtrit

    seeds, examples = values_SN.shape
    if seeds < LEAST_SEEDS or examples < 2:
        return None
    mean = float(values_SN.mean())
    of_seeds_S, of_examples_N = values_SN.mean(axis=1), values_SN.mean(axis=0)
    rest_SN = values_SN - of_seeds_S[:, None] - of_examples_N[None, :] + mean
    df = np.array([seeds - 1, examples - 1, (seeds - 1) * (examples - 1)])
    of_seeds = examples * ((of_seeds_S - mean) ** 2).sum() / df[0]
    of_examples = seeds * ((of_examples_N - mean) ** 2).sum() / df[1]
    rest = (rest_SN**2).sum() / df[2]
    parts = np.array([max(of_seeds, rest), max(of_examples, rest), -rest])
    total = float(parts.sum())
    if total <= 0:
        return CrossedMean(mean, (mean, mean), 1.0 if mean == 0 else 0.0)
    degrees = total**2 / float((parts**2 / df).sum())
    error = (total / values_SN.size) ** 0.5
    half = float(stdtrit(degrees, (1 + LEVEL) / 2)) * error
    p = float(2 * stdtr(degrees, -abs(mean) / error))
    return CrossedMean(mean, (mean - half, mean + half), p)


# The difference between two runs over the same documents, with its interval and its test


def paired(
    values: Sequence[Any],
    baseline: Sequence[Any],
    aggregate: Aggregate | None = None,
    *,
    lower_is_better: bool = False,
    equal: Sequence[bool] | None = None,
) -> Paired:
    """The difference `values` minus `baseline` over the same documents, in the same order.

    0/1 scores have McNemar's exact p and the numbers of changed documents, 0 being right with `lower_is_better`. Other
    scores have the p of the permutation test instead, in which equal documents are ties.

    Args:
        equal: whether each document's values are equal within rounding (`results/rounding.py`); by default those that
            are the same.
    """
    if len(values) != len(baseline):
        raise ValueError(f"{len(values)} and {len(baseline)} documents cannot be paired")
    score = aggregate or (lambda each: float(np.mean(each)))
    difference = Paired(
        n=len(values),
        difference=difference_of(float(score(list(values))), float(score(list(baseline)))),
        interval=interval_of_difference([values], [baseline], aggregate),
    )
    if aggregate is None and is_binary(values) and is_binary(baseline):
        up = int(sum(map(gt, values, baseline)))
        down = int(sum(map(gt, baseline, values)))
        right, wrong = (down, up) if lower_is_better else (up, down)
        test: dict[str, Any] = {
            "p_mcnemar": mcnemar(right, wrong),
            "to_right": right,
            "to_wrong": wrong,
        }
        return difference.model_copy(update=test)
    if equal is None:
        equal = list(map(eq, values, baseline))
    if all(equal):
        return difference.model_copy(update={"equal": True})
    tied = [
        mine if tie else theirs for mine, theirs, tie in zip(values, baseline, equal, strict=True)
    ]
    p = randomization_test(values, tied, aggregate)
    return difference.model_copy(update={"p_permutation": p})
