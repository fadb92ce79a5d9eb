"""Every interval that is printed covers the truth in 93% to 97% of simulated experiments, at n documents.

Each experiment draws its own truth (an accuracy, a share of changed answers), as users' experiments have their own. The
standard error of a coverage of 95% is 0.7% with 1,000 experiments; where there are fewer, three of them are allowed.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from lm_eval.api.metrics import weighted_perplexity

from moe_lab.metrics.intervals import ratio
from moe_lab.metrics.training_metrics import correlations
from moe_lab.results.statistics import (
    Interval,
    interval,
    interval_of_difference,
    interval_of_mean,
    interval_of_mean_of_tasks,
    over_seeds,
)

Experiment = Callable[[np.random.Generator, int], tuple[float, Interval]]
"""(generator, documents) -> the truth, and the interval of what was drawn."""


def accuracy(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    truth = random.uniform(0.05, 0.95)
    return truth, interval(random.binomial(1, truth, n).tolist())


def continuous(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    return 1.0, interval(random.gamma(2.0, 0.5, n).tolist())


def perplexity(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    words, level = random.integers(20, 200, n), random.uniform(1, 3)
    losses = words * random.normal(level, 0.4, n)
    return math.exp(level), interval(
        [(-x, int(w)) for x, w in zip(losses, words, strict=True)], weighted_perplexity
    )


def paired_accuracy(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    up, down = random.uniform(0.01, 0.2, size=2)
    value, base = np.array([[1, 0], [0, 1], [1, 1]])[random.choice(3, size=n, p=[up, down, 1 - up - down])].T
    return up - down, interval_of_difference([value.tolist()], [base.tolist()])


def paired_continuous(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    base = random.gamma(2.0, 5.0, n)
    return 0.1, interval_of_difference([(base + random.normal(0.1, 1, n)).tolist()], [base.tolist()])


def paired_perplexity(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    words = random.integers(20, 200, n)
    base = words * random.normal(2, 0.4, n)
    changed = base + words * random.normal(-0.02, 0.1, n)
    mine, theirs = ([(-x, int(w)) for x, w in zip(losses, words, strict=True)] for losses in (changed, base))
    return math.exp(1.98) - math.exp(2), interval_of_difference([mine], [theirs], weighted_perplexity)


def _over_seeds(random: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, float]:
    """0/1 scores of three seeds and of base; in some documents the method's noise decides."""
    loose = random.uniform(0.05, 0.4)
    base = random.binomial(1, 0.6, n)
    chance = np.where(random.random(n) < loose, random.beta(2, 1.5, n), base)
    return random.binomial(1, chance, size=(3, n)), base, loose


def mean_over_seeds(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    values, _, loose = _over_seeds(random, n)
    return (1 - loose) * 0.6 + loose * 2 / 3.5, interval_of_mean(values.tolist())


def difference_over_seeds(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    values, base, loose = _over_seeds(random, n)
    return loose * (2 / 3.5 - 0.6), interval_of_difference(values.tolist(), [base.tolist()])


def mean_of_tasks(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    truths = random.uniform(0.1, 0.9, size=3)
    drawn = [random.binomial(1, truth, n).tolist() for truth in truths]
    return float(truths.mean()), interval_of_mean_of_tasks(
        [np.mean(one) for one in drawn], list(map(interval, drawn))
    )


def seeds(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    return 0.3, over_seeds(random.normal(0.3, 0.05, size=5).tolist()).interval


def share_of_tokens(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    tokens = random.integers(5, 40, n)
    return 0.6, ratio(random.binomial(tokens, random.beta(6, 4, n)), tokens).interval


def correlation(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    truth = random.uniform(-0.8, 0.8)
    x, y = random.multivariate_normal([0, 0], [[1, truth], [truth, 1]], size=n).T
    names = ("load_balance", "collaboration", "specialization")
    lines = [
        {"capacity": None} | {name: {"value": v} for name, v in zip(names, (a, b, 0.0), strict=True)}
        for a, b in zip(x, y, strict=True)
    ]
    return truth, correlations(lines)[0]["ci95"]


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, 100, 1000])
@pytest.mark.parametrize(
    "experiment", [accuracy, paired_accuracy, mean_over_seeds, difference_over_seeds, mean_of_tasks]
)
def test_intervals_of_shares_cover(experiment, n):
    assert 0.93 <= coverage(experiment, 1000, n) <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("n", [100, 500])
@pytest.mark.parametrize(
    "experiment",
    [continuous, paired_continuous, share_of_tokens, seeds, correlation, perplexity, paired_perplexity],
)
def test_intervals_of_other_numbers_cover(experiment, n):
    times = {"perplexity": 100 if n == 100 else 50, "continuous": 400, "correlation": 200}.get(
        experiment.__name__.removeprefix("paired_"), 1000
    )
    slack = 3 * math.sqrt(0.95 * 0.05 / times) - 0.02 if times < 1000 else 0.0
    assert 0.93 - slack <= coverage(experiment, times, n) <= 0.97 + slack


def coverage(experiment: Experiment, times: int, n: int) -> float:
    random = np.random.default_rng(7)
    covered = 0
    for _ in range(times):
        truth, (low, high) = experiment(random, n)
        covered += low <= truth <= high
    return covered / times
