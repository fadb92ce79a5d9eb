"""The randomization test of the difference of two scores over the same documents (Noreen, 1989).

N = documents, C = those whose values differ, R = random swaps at once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from moe_lab.results.statistics import (
    SEED,
    SLOW_RESAMPLES,
    Aggregate,
    likelihood_terms,
    score_of_draw,
)

SWAPS = 9999
"""Random swaps of a test of means; its smallest p is 1 / (SWAPS + 1)."""
SLOW_SWAPS = SLOW_RESAMPLES - 1
"""Random swaps of a test with an `aggregate` that is not the mean."""


def randomization_test(
    values: Sequence[Any], baseline: Sequence[Any], aggregate: Aggregate | None = None
) -> float:
    """Two-sided p of the difference of two scores over the same documents (Noreen, 1989), seeded.

    Under the null hypothesis each document's two values may be swapped. p is the share of random
    swaps whose difference is at least as far from 0 as the observed one, which counts as one of
    them. For 0/1 scores McNemar's test is the exact form of it. Perplexities are tested by their
    log-likelihoods.

    Args:
        aggregate: the function from the documents' values to the score; None is the mean.
    """
    if aggregate is None:
        differences = _swapped_sums(values, baseline)
    else:
        of_perplexities = log_likelihoods(values, baseline, aggregate)
        if of_perplexities is not None:
            return randomization_test(*of_perplexities)
        differences = np.array(list(_swapped_differences(values, baseline, aggregate)))
    observed = abs(differences[0])
    swapped = np.abs(differences[1:])
    rounding = 1e-12 * max(observed, float(swapped.max(initial=0.0)))
    nearer = swapped < observed - rounding  # never where a value is NaN, whose p is 1
    return float((1 + np.sum(~nearer)) / len(differences))


def log_likelihoods(
    values: Sequence[Any], baseline: Sequence[Any], aggregate: Aggregate
) -> tuple[list[float], list[float]] | None:
    """The documents' log-likelihoods, where `aggregate` is a perplexity of lm-eval; else None.

    The sum of both runs' log-likelihoods stays the same whatever is swapped, and both have the same
    words. The distance of two perplexities then grows with that of the log-likelihoods, so that a
    test of either has the same p.
    """
    terms_2N = likelihood_terms(values, aggregate)
    base_terms_2N = likelihood_terms(baseline, aggregate)
    if terms_2N is None or base_terms_2N is None:
        return None
    if (terms_2N[1] != base_terms_2N[1]).any():
        return None
    return terms_2N[0].tolist(), base_terms_2N[0].tolist()


def _swapped_sums(values: Sequence[Any], baseline: Sequence[Any]) -> np.ndarray:
    """The sum of the documents' differences, then the sums after random swaps, float64 [1 +
    SWAPS]."""
    difference_N = np.asarray(values, dtype=float) - np.asarray(baseline, dtype=float)
    difference_C = difference_N[difference_N != 0]  # a swap of equal values changes nothing
    count = len(difference_C)
    random = np.random.default_rng(SEED)
    at_once = max(1, 2**20 // max(1, count))  # 8 MiB
    sums = [np.array([difference_C.sum()])]
    for start in range(0, SWAPS, at_once):
        size = min(at_once, SWAPS - start)
        sign_RC = 1 - 2.0 * random.integers(2, size=(size, count), dtype=np.int8)
        sums.append(sign_RC @ difference_C)
    return np.concatenate(sums)


def _swapped_differences(
    values: Sequence[Any], baseline: Sequence[Any], aggregate: Aggregate
) -> Iterator[float]:
    """The observed difference of the aggregates, then those after random swaps."""
    values = list(values)
    baseline = list(baseline)
    yield score_of_draw(aggregate, values) - score_of_draw(aggregate, baseline)
    random = np.random.default_rng(SEED)
    for _ in range(SLOW_SWAPS):
        is_swapped_N = random.integers(2, size=len(values))
        swapped = list(values)
        swapped_baseline = list(baseline)
        for i in is_swapped_N.nonzero()[0]:
            swapped[i] = baseline[i]
            swapped_baseline[i] = values[i]
        yield score_of_draw(aggregate, swapped) - score_of_draw(aggregate, swapped_baseline)
