"""Uncertainty of one score, and of the difference between two runs on the same documents.

| score | one score | difference on the same documents |
|---|---|---|
| each document 0 or 1 | Wilson (1927) | Tango (1998), McNemar's exact test |
| mean over seeds of such scores | the same two, with the moments of the documents' means |
| any other | expanded percentile bootstrap over documents (Hesterberg, 2015), seeded |

`aggregate` is lm-eval's function from the documents' values to the score; None is the mean.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from moe_lab.results.measured import Spread
from moe_lab.results.stored import Interval

VERSION = 4
"""Version of the methods here. Intervals of another version are computed again from the stored
answers."""
LEVEL = 0.95
Z = 1.959963984540054
"""The quantile of the normal distribution at (1 + LEVEL) / 2."""
RESAMPLES = 10_000
"""Resamples of a mean or a perplexity, whose sums are resampled all at once."""
SLOW_RESAMPLES = 500
"""Resamples of a score with any other `aggregate`, which runs once per resample."""
FEW_VALUES = 50
SEED = 1234
ROUNDING = 1e-12
"""Two scores that differ by no more are equal: 0.3 - 0.2 and 0.4 - 0.3 differ in their last
bits."""

Aggregate = Callable[[list[Any]], float]


def score_interval(values: Sequence[Any], aggregate: Aggregate | None = None) -> Interval | None:
    """95% interval of a score over its documents; None with fewer than two."""
    return interval_of_mean([values], aggregate)


def interval_of_mean(
    samples: Sequence[Sequence[Any]], aggregate: Aggregate | None = None
) -> Interval | None:
    """95% interval over documents of the mean of several runs' scores on the same documents; None
    for one document.

    Args:
        samples: the values of each run, by document.
    """
    n = len(samples[0])
    if n < 2:
        return None
    if aggregate is not None:
        scores_SR = _resampled(samples, aggregate)
        return percentiles(scores_SR.mean(axis=0), n)
    means_N = np.mean(np.asarray(samples, dtype=float), axis=0)
    if all(is_binary(values) for values in samples):
        return _wilson_of_means(means_N)
    return bootstrap_interval(means_N)


def bootstrap_interval(values: Any) -> Interval:
    """95% expanded percentile interval of the mean of at least two documents' values."""
    values_N = np.asarray(values, dtype=float)
    n = len(values_N)
    means_R = _resampled_sums(values_N[None])[:, 0] / n
    return percentiles(means_R, n)


def interval_of_difference(
    samples: Sequence[Sequence[Any]],
    others: Sequence[Sequence[Any]],
    aggregate: Aggregate | None = None,
) -> Interval | None:
    """95% interval over documents of several runs' mean score minus that of other runs, on the same
    documents; None for one document."""
    n = len(others[0])
    if n < 2:
        return None
    if aggregate is not None:
        scores_SR = _resampled([*samples, *others], aggregate)
        means_R = scores_SR[: len(samples)].mean(axis=0)
        other_means_R = scores_SR[len(samples) :].mean(axis=0)
        return percentiles(means_R - other_means_R, n)
    means_N = np.mean(np.asarray(samples, dtype=float), axis=0)
    other_means_N = np.mean(np.asarray(others, dtype=float), axis=0)
    if all(is_binary(values) for values in (*samples, *others)):
        return _tango_of_means(means_N - other_means_N)
    return bootstrap_interval(means_N - other_means_N)


def wilson(right: float, n: float) -> Interval:
    """Wilson's 95% score interval of a proportion. Neither number need be whole."""
    # statsmodels' proportion_confint without its import, which takes a twentieth of a command's
    # start
    share = right / n
    z2 = Z**2
    scale = 1 + z2 / n
    middle = (share + z2 / (2 * n)) / scale
    half = Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n**2)) / scale
    return max(0.0, round(middle - half, 15)), min(1.0, round(middle + half, 15))


def tango(to_right: float, to_wrong: float, n: float) -> Interval:
    """Tango's (1998) 95% score interval of a difference of paired proportions, (to_right -
    to_wrong) / n.

    It inverts the score test of "the difference is d": those d are inside at which the observed
    difference is less than 1.96 standard errors away, the standard error being the one under d.
    """
    from scipy.optimize import brentq

    difference = (to_right - to_wrong) / n

    def excess(d: float, side: int) -> float:
        """How far n * d is from the observed number, beyond 1.96 standard errors under d; 0 at the
        limit. `side` is 1 for the lower limit and -1 for the upper."""
        b = (2 * n - to_right + to_wrong) * d - to_right - to_wrong
        q = (math.sqrt(max(0.0, b * b + 8 * n * to_wrong * d * (1 - d))) - b) / (4 * n)
        variance = n * (2 * q + d * (1 - d))
        return side * (n * (difference - d)) - Z * math.sqrt(max(0.0, variance))

    margin = 1e-9  # at the difference itself the variance may be 0
    low = -1.0
    if difference - margin > -1:
        low = brentq(excess, -1, difference - margin, args=(1,), xtol=1e-12)
    high = 1.0
    if difference + margin < 1:
        high = brentq(excess, difference + margin, 1, args=(-1,), xtol=1e-12)
    return float(low), float(high)


def _wilson_of_means(means_N: np.ndarray) -> Interval:
    """Wilson's interval for means over seeds.

    Its number of documents is that of 0/1 scores of the same mean and variance: all documents if
    every mean is 0 or 1, and if all means are equal.
    """
    n = len(means_N)
    mean = float(means_N.mean())
    effective: float = n
    if not are_equal(means_N.tolist()):
        effective = n * mean * (1 - mean) / float(means_N.var())
    return wilson(mean * effective, effective)


def _tango_of_means(differences_N: np.ndarray) -> Interval:
    """Tango's interval for means over seeds, as if each document changed by `step` or not at all.

    `step` is mean(d^2) / mean(|d|) of the differences d, so that such documents have the same two
    moments: 1 for differences of -1, 0 and 1. If nothing changed, it is 1, which gives the widest
    interval.
    """
    n = len(differences_N)
    size = float(np.abs(differences_N).mean())
    step = float((differences_N**2).mean()) / size if size else 1.0
    up = n * float(np.maximum(differences_N, 0).mean()) / step
    down = n * float(np.maximum(-differences_N, 0).mean()) / step
    low, high = tango(up, down, n)
    return step * low, step * high


def interval_of_mean_of_tasks(values: Sequence[float], intervals: Sequence[Interval]) -> Interval:
    """95% interval of the unweighted mean of independent tasks' scores, from the interval of each.

    The method of variance estimates recovery (Zou and Donner, 2008): the squared distances from a
    score to its limits add up, which keeps the skew. For a score outside of its interval, which
    corrects a bias, the interval's middle is used. The tasks are fixed; their documents are a
    sample.
    """
    limits_K2 = np.asarray(intervals, dtype=float)
    low_K = limits_K2[:, 0]
    high_K = limits_K2[:, 1]
    inside_K = (low_K <= values) & (values <= high_K)
    centre_K = np.where(inside_K, values, limits_K2.mean(axis=1))
    count = len(centre_K)
    mean = float(centre_K.mean())
    below = float(np.linalg.norm(centre_K - low_K)) / count
    above = float(np.linalg.norm(centre_K - high_K)) / count
    return mean - below, mean + above


def mcnemar(to_right: int, to_wrong: int) -> float:
    """Exact two-sided p of McNemar's test on the documents that changed; 1 if none did."""
    from scipy.special import bdtr

    changed = to_right + to_wrong
    return min(1.0, 2 * float(bdtr(min(to_right, to_wrong), changed, 0.5)))


def over_seeds(scores: Sequence[float]) -> Spread:
    """The mean of a score over seeds, its spread and its interval.

    One seed has a mean alone. Equal scores have a standard deviation of 0 and no interval.
    """
    from scipy.special import stdtrit

    count = len(scores)
    mean = float(np.mean(scores))
    if count < 2:
        return Spread(mean)
    if are_equal(scores):
        return Spread(mean, 0.0)
    std = float(np.std(scores, ddof=1))
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * std / count**0.5
    return Spread(mean, std, (mean - half, mean + half))


def are_equal(scores: Sequence[float]) -> bool:
    """Whether scores or differences differ by rounding alone."""
    return math.isclose(min(scores), max(scores), rel_tol=ROUNDING, abs_tol=ROUNDING)


def difference_of(score: float, other: float) -> float:
    """The difference of two scores, 0 where they differ by rounding alone."""
    return 0.0 if are_equal([score, other]) else score - other


def mean_of_differences(differences: Sequence[float]) -> float:
    """The mean, 0 where only rounding is left of it: that of 0.4 - 0.3 and 0.2 - 0.3 is 2.8e-17."""
    mean = float(np.mean(differences))
    return 0.0 if are_equal([mean, 0.0]) else mean


def is_binary(values: Sequence[Any]) -> bool:
    """Whether all values are 0 or 1."""
    numbers = bool | int | float | np.number
    return all(isinstance(value, numbers) and value in (0, 1) for value in values)


def likelihood_terms(values: Sequence[Any], aggregate: Aggregate) -> np.ndarray | None:
    """The documents' log-likelihoods and lengths (in words or bytes, or 1), float64 [2, N].

    The score is a function of the ratio of their sums. None if `aggregate` is none of lm-eval's
    perplexity, weighted_perplexity and bits_per_byte.
    """
    name = getattr(aggregate, "__name__", "")
    if name == "perplexity":
        return np.array([values, [1.0] * len(values)], dtype=float)
    if name in ("weighted_perplexity", "bits_per_byte"):
        return np.array(values, dtype=float).T
    return None


def _perplexities(sums_R2: np.ndarray, aggregate: Aggregate) -> np.ndarray:
    """The scores, float64 [R], of sums of `likelihood_terms`; NaN where the total length is 0."""
    weights_R = np.where(sums_R2[:, 1] > 0, sums_R2[:, 1], math.nan)
    nats_R = -sums_R2[:, 0] / weights_R
    if getattr(aggregate, "__name__", "") == "bits_per_byte":
        return nats_R / math.log(2)
    with np.errstate(over="ignore"):
        return np.exp(nats_R)


def _resampled_sums(terms_KN: np.ndarray) -> np.ndarray:
    """Sums of K numbers over resampled documents, float64 [RESAMPLES, K]. All K share the drawn
    documents."""
    count = terms_KN.shape[1]
    random = np.random.default_rng(SEED)
    distinct_KD, counts_D = np.unique(terms_KN, axis=1, return_counts=True)
    if len(counts_D) <= FEW_VALUES:  # how often each value is drawn is multinomial
        return random.multinomial(count, counts_D / count, size=RESAMPLES) @ distinct_KD.T
    at_once = max(1, 2**20 // count)  # 8 MiB for each number
    sums = []
    for start in range(0, RESAMPLES, at_once):
        size = min(at_once, RESAMPLES - start)
        draw_RN = random.integers(count, size=(size, count))
        sums.append(terms_KN[:, draw_RN].sum(axis=-1).T)
    return np.concatenate(sums)


def _resampled(samples: Sequence[Sequence[Any]], aggregate: Aggregate) -> np.ndarray:
    """Scores of resampled documents, float64 [samples, resamples]. All samples share the drawn
    documents.

    NaN stands for a draw without a score (`score_of_draw`): empty texts alone have no perplexity.
    """
    terms = []
    for values in samples:
        terms_of_sample = likelihood_terms(values, aggregate)
        if terms_of_sample is not None:
            terms.append(terms_of_sample)
    if terms:
        sums_RK = _resampled_sums(np.concatenate(terms))
        perplexities = []
        for number in range(len(terms)):
            sums_R2 = sums_RK[:, 2 * number : 2 * number + 2]
            perplexities.append(_perplexities(sums_R2, aggregate))
        return np.array(perplexities)

    count = len(samples[0])
    draw_RN = np.random.default_rng(SEED).integers(count, size=(SLOW_RESAMPLES, count))
    scores_SR = np.empty((len(samples), SLOW_RESAMPLES))
    for number, values in enumerate(samples):
        for place, draw_N in enumerate(draw_RN):
            drawn = [values[i] for i in draw_N]
            scores_SR[number, place] = score_of_draw(aggregate, drawn)
    return scores_SR


def score_of_draw(aggregate: Aggregate, values: list[Any]) -> float:
    """The score of a draw; NaN for a draw without one, such as an area under the ROC curve where
    all answers are right.

    The function does not fail with all documents.
    """
    with warnings.catch_warnings():
        # scikit-learn warns of draws in which all answers are alike
        warnings.simplefilter("ignore")
        try:
            return float(aggregate(values))
        except (ArithmeticError, ValueError):
            return math.nan


def percentiles(scores: np.ndarray, n: int) -> Interval:
    """The 95% expanded percentile interval (Hesterberg, 2015) of resampled scores of n documents.

    Plain percentiles are too narrow for few documents. The level is raised so that a normal
    interval with n instead of n - 1 would be as wide as Student's. Draws without a score (NaN) are
    left out.
    """
    from scipy.special import ndtr, stdtrit

    tail = float(ndtr(math.sqrt(n / (n - 1)) * stdtrit(n - 1, (1 - LEVEL) / 2)))
    low, high = np.nanquantile(scores, [tail, 1 - tail])
    return float(low), float(high)
