"""Uncertainty of one score, and of the difference between two runs on the same documents.

Scores that are 0 or 1 get Wilson's interval and McNemar's exact test; all others a percentile bootstrap over
documents, seeded. `aggregate` is lm-eval's own: it turns the documents' values into the score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LEVEL = 0.95
RESAMPLES = 2000
SLOW_RESAMPLES = 500
"""Resamples where `aggregate` is not the mean and runs once per resample."""
FEW_VALUES = 50
SEED = 1234

Aggregate = Callable[[list[Any]], float]
Interval = tuple[float, float]


def interval(values: Sequence[Any], aggregate: Aggregate | None = None) -> Interval | None:
    """95% interval of a score over its documents; None with fewer than two. `aggregate` None: the mean."""
    if len(values) < 2:
        return None
    if aggregate is None and is_binary(values):
        from statsmodels.stats.proportion import proportion_confint

        low, high = proportion_confint(int(sum(values)), len(values), alpha=1 - LEVEL, method="wilson")
        return max(0.0, round(float(low), 15)), min(1.0, round(float(high), 15))
    return _percentiles(_resampled_means(values) if aggregate is None else _resampled([values], aggregate)[0])


def interval_of_mean(samples: Sequence[Sequence[Any]], aggregate: Aggregate | None = None) -> Interval | None:
    """95% interval over documents of the mean of several runs' scores on the same documents."""
    if len(samples) == 1 or len(samples[0]) < 2:
        return interval(samples[0], aggregate)
    if aggregate is None:
        return _percentiles(_resampled_means(np.mean(np.asarray(samples, dtype=float), axis=0)))
    return _percentiles(_resampled(samples, aggregate).mean(axis=0))


def paired(
    values: Sequence[Any], baseline: Sequence[Any], aggregate: Aggregate | None = None
) -> dict[str, Any]:
    """The difference `values` minus `baseline`, document by document.

    Returns {"n", "difference", "ci95", "p_mcnemar", "to_right", "to_wrong"}: the interval resamples documents; p is
    McNemar's exact one, and the last two count documents that changed, for 0/1 scores, and are null for others. The two
    sequences list the same documents in the same order.
    """
    if len(values) != len(baseline):
        raise ValueError(f"{len(values)} and {len(baseline)} documents cannot be paired")
    mean = aggregate or _mean
    if len(values) < 2:
        ci = None
    elif aggregate is None:
        ci = _percentiles(
            _resampled_means(np.asarray(values, dtype=float) - np.asarray(baseline, dtype=float))
        )
    else:
        ci = _percentiles(-np.diff(_resampled([values, baseline], aggregate), axis=0)[0])
    binary = aggregate is None and is_binary(values) and is_binary(baseline)
    return {
        "n": len(values),
        "difference": float(mean(list(values))) - float(mean(list(baseline))),
        "ci95": list(ci) if ci else None,
        "p_mcnemar": mcnemar(values, baseline) if binary else None,
        "to_right": sum(v > b for v, b in zip(values, baseline, strict=True)) if binary else None,
        "to_wrong": sum(v < b for v, b in zip(values, baseline, strict=True)) if binary else None,
    }


def interval_of_difference(
    samples: Sequence[Sequence[Any]], others: Sequence[Sequence[Any]], aggregate: Aggregate | None = None
) -> Interval | None:
    """95% interval over documents of several runs' mean score minus that of other runs, on the same documents."""
    if len(others[0]) < 2:
        return None
    if aggregate is None:
        means, before = (np.mean(np.asarray(runs, dtype=float), axis=0) for runs in (samples, others))
        return _percentiles(_resampled_means(means - before))
    scores = _resampled([*samples, *others], aggregate)
    return _percentiles(scores[: len(samples)].mean(axis=0) - scores[len(samples) :].mean(axis=0))


def interval_of_mean_of_tasks(values: Sequence[float], intervals: Sequence[Interval]) -> Interval:
    """95% interval of the mean of independent tasks' scores, each counting alike, from each one's own interval.

    The method of variance estimates recovery (Zou and Donner, 2008): squared distances from a score to its limits add
    up, so that the mean's interval is as skewed as theirs. Where a score lies outside of its interval, which corrects a
    bias, the interval's middle takes its place. The tasks are fixed, their documents are drawn.
    """
    limits = np.asarray(intervals, dtype=float)
    inside = (limits[:, 0] <= values) & (values <= limits[:, 1])
    centres = np.where(inside, values, limits.mean(axis=1))
    below, above = (float(np.linalg.norm(centres - limits[:, side])) / len(centres) for side in (0, 1))
    return float(centres.mean()) - below, float(centres.mean()) + above


def mcnemar(values: Sequence[float], baseline: Sequence[float]) -> float:
    """Exact two-sided p of McNemar's test: the chance of so uneven a split of the documents that changed."""
    from scipy.stats import binomtest

    gained = sum(1 for new, old in zip(values, baseline, strict=True) if new > old)
    lost = sum(1 for new, old in zip(values, baseline, strict=True) if new < old)
    return float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0


def over_seeds(scores: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation (n - 1) and 95% t interval of one score over seeds."""
    from scipy.stats import t

    count, mean = len(scores), float(np.mean(scores))
    if count < 2:
        return {"mean": mean, "std": None, "ci95": None}
    std = float(np.std(scores, ddof=1))
    half = float(t.ppf((1 + LEVEL) / 2, count - 1)) * std / count**0.5
    return {"mean": mean, "std": std, "ci95": [mean - half, mean + half]}


def is_binary(values: Sequence[Any]) -> bool:
    """Whether all values are 0 or 1."""
    return all(isinstance(value, bool | int | float | np.number) and value in (0, 1) for value in values)


def _resampled_means(values: Any) -> np.ndarray:
    """Means of resampled documents, float64 [RESAMPLES]."""
    array = np.asarray(values, dtype=float)
    random = np.random.default_rng(SEED)
    distinct, counts = np.unique(array, return_counts=True)
    if len(distinct) <= FEW_VALUES:  # how often each value is drawn is multinomial
        return random.multinomial(len(array), counts / len(array), size=RESAMPLES) @ distinct / len(array)
    at_once = max(1, 2**21 // len(array))  # 16 MiB
    sizes = [min(at_once, RESAMPLES - start) for start in range(0, RESAMPLES, at_once)]
    return np.concatenate(
        [array[random.integers(len(array), size=(n, len(array)))].mean(axis=1) for n in sizes]
    )


def _resampled(samples: Sequence[Sequence[Any]], aggregate: Aggregate) -> np.ndarray:
    """Scores of resampled documents, the same ones in every sample: float64 [samples, SLOW_RESAMPLES]."""
    count = len(samples[0])
    draws = np.random.default_rng(SEED).integers(count, size=(SLOW_RESAMPLES, count))
    return np.array([[float(aggregate([values[i] for i in draw])) for draw in draws] for values in samples])


def _percentiles(scores: np.ndarray) -> Interval:
    low, high = np.quantile(scores, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _mean(values: list[Any]) -> float:
    return float(np.mean(values))
