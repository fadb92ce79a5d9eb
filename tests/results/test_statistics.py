"""Breaks if an interval or a p-value is not the textbook's, or if the randomization test
is not the exact test on few documents.

Breaks if two runs on the same documents are not compared document by document,
by the test of their scores.

The test over seeds and examples together. Broken by: a variance that is left out or counted twice,
other degrees of freedom, a test that rejects a true hypothesis more often than it says.

Every interval that is printed covers the truth in 93% to 97% of simulated
experiments, at n documents.

Each experiment draws its own truth (an accuracy, a share of changed answers), as users'
experiments have their own. The standard error of a coverage of 95% is 0.7% with 1,000 experiments;
where there are fewer, three of them are allowed.
"""

import math
import warnings
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from lm_eval.api.metrics import bits_per_byte, weighted_perplexity
from scipy.stats import ttest_1samp
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from moe_lab.metrics.correlations import correlations
from moe_lab.metrics.intervals import ratio
from moe_lab.models.lm_eval_internals import aggregation_of_metric
from moe_lab.results import statistics
from moe_lab.results.atomic import plain
from moe_lab.results.measured import Paired, Spread
from moe_lab.results.over_seeds import crossed_mean, p_over_seeds
from moe_lab.results.paired import paired
from moe_lab.results.randomization import SLOW_SWAPS, SWAPS, log_likelihoods, randomization_test
from moe_lab.results.significance import holm
from moe_lab.results.statistics import (
    Interval,
    interval_of_difference,
    interval_of_mean,
    interval_of_mean_of_tasks,
    mcnemar,
    over_seeds,
    score_interval,
    tango,
    wilson,
)


@pytest.mark.parametrize(
    ("right", "n"), [(0, 1), (0, 10), (10, 10), (0.3, 7.9), (12, 37), (81, 263), (14041.5, 14042)]
)
def test_wilson_is_that_of_statsmodels_for_any_numbers(right, n):
    limits = proportion_confint(right, n, alpha=0.05, method="wilson")
    assert wilson(right, n) == pytest.approx((max(0.0, limits[0]), min(1.0, limits[1])), abs=1e-14)
    if isinstance(right, int) and n > 1:
        values = [1.0] * right + [0.0] * (n - right)
        assert score_interval(values) == pytest.approx(wilson(right, n), abs=1e-12)


def test_bootstrap_of_a_mean_is_close_to_the_normal_interval():
    values = list(np.random.default_rng(0).normal(3, 2, size=400))
    low, high = score_interval(values)  # type: ignore[misc]
    half = 1.96 * float(np.std(values, ddof=1)) / 20
    # 2000 resamples place a 2.5% quantile within 4% of the half width (one standard error).
    # 15% is more than three standard errors.
    assert low == pytest.approx(np.mean(values) - half, abs=0.15 * half)
    assert high == pytest.approx(np.mean(values) + half, abs=0.15 * half)
    assert (low, high) == score_interval(values), "seeded"


def test_too_few_documents_have_no_interval():
    assert score_interval([1.0]) is None
    assert interval_of_difference([[1.0]], [[0.0]]) is None


@pytest.mark.parametrize(
    ("gained", "lost", "n", "low", "high"),
    [
        (
            1,
            7,
            21,
            -0.517,
            -0.026,
        ),  # Fagerland, Lydersen and Laake (2014), airway hyper-responsiveness
        (0, 0, 100, -0.0370, 0.0370),  # z^2 / (n + z^2): never empty
        (5, 0, 5, 0.1310, 1.0),
        (0, 5, 5, -1.0, -0.1310),
    ],
)
def test_tango(gained, lost, n, low, high):
    assert tango(gained, lost, n) == pytest.approx((low, high), abs=5e-4)
    values = [1.0] * gained + [0.0] * (n - gained)
    before = [0.0] * gained + [1.0] * lost + [0.0] * (n - gained - lost)
    assert interval_of_difference([values], [before]) == pytest.approx(
        tango(gained, lost, n), abs=1e-12
    )
    swapped = tango(lost, gained, n)
    assert swapped == pytest.approx(
        (-tango(gained, lost, n)[1], -tango(gained, lost, n)[0]), abs=1e-9
    )


@pytest.mark.parametrize(("gained", "lost", "n"), [(9, 4, 60), (3, 0, 40), (0, 2, 25)])
def test_tango_inverts_the_score_test(gained, lost, n):
    """At each limit the score statistic is 1.96.

    Its variance is at the likelihood's maximum, found by brute force.
    """
    for d, side in zip(tango(gained, lost, n), (1, -1), strict=True):
        # the chance of a loss; q + d of a gain
        q = np.linspace(max(0.0, -d) + 1e-9, (1 - d) / 2 - 1e-9, 200_001)
        with np.errstate(divide="ignore", invalid="ignore"):
            chances = ((gained, q + d), (lost, q), (n - gained - lost, 1 - 2 * q - d))
            terms = [count * np.log(chance) if count else 0.0 for count, chance in chances]
        best = q[np.nanargmax(sum(terms))]
        statistic = (gained - lost - n * d) / np.sqrt(n * (2 * best + d - d**2))
        assert side * statistic == pytest.approx(1.959964, rel=1e-3)


def test_over_seeds():
    result = over_seeds([0.1, 0.2, 0.3])
    assert result.mean == pytest.approx(0.2)
    assert result.std == pytest.approx(0.1)
    assert result.interval == pytest.approx(
        [0.2 - 4.302653 * 0.1 / 3**0.5, 0.2 + 4.302653 * 0.1 / 3**0.5]
    )
    assert over_seeds([0.5]) == Spread(0.5)
    assert over_seeds([0.5] * 5) == Spread(0.5, 0.0), "nothing moved: no width is known"


def test_interval_over_documents_of_several_seeds():
    rows = np.random.default_rng(2).integers(0, 2, size=(3, 100)).astype(float)
    low, high = interval_of_mean([list(row) for row in rows])  # type: ignore[misc]
    half = 1.96 * float(rows.mean(axis=0).std(ddof=1)) / 10
    assert high - low == pytest.approx(2 * half, rel=0.15)
    assert interval_of_mean([list(rows[0])]) == score_interval(list(rows[0]))
    same_interval = interval_of_mean([list(rows[0])] * 3)
    assert same_interval == pytest.approx(score_interval(list(rows[0]))), (
        "seeds that agree add no information"
    )


def test_intervals_of_differences_over_seeds_are_tangos_where_seeds_agree():
    """Broken by an interval of no width where nothing changed, as a bootstrap's is."""
    base = [1.0] * 50 + [0.0] * 50
    changed = [1.0] * 46 + [0.0] * 50 + [1.0] * 4
    assert interval_of_difference([changed] * 3, [base]) == pytest.approx(tango(4, 4, 100))
    assert interval_of_difference([base] * 3, [base]) == pytest.approx(tango(0, 0, 100))
    # eight documents change in one of three seeds
    one_seed = interval_of_difference([base, base, changed], [base])
    assert one_seed is not None
    assert one_seed[1] == pytest.approx(tango(4, 4, 100)[1] / 3)


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_a_mean_over_seeds_has_an_interval_where_all_documents_are_alike(seeds, n):
    """In one seed every document is right. Broken by a variance that is 0 but for its last bits."""
    interval = interval_of_mean([[1.0] * n] + [[0.0] * n] * (seeds - 1))
    assert interval == pytest.approx(wilson(n / seeds, n), abs=1e-12)


@pytest.mark.parametrize("seeds", [3, 5, 7])
@pytest.mark.parametrize("n", [2, 3, 5, 6])
def test_a_difference_over_seeds_has_an_interval_where_all_documents_changed_alike(seeds, n):
    """In one seed every document became right: 1 / seeds of the interval for n of n documents.

    Broken by the last bit: 3 documents of 0.333 each count as 2.9999999999999996 changed ones.
    """
    values = [[1.0] * n] + [[0.0] * n] * (seeds - 1)
    low, high = tango(n, 0, n)
    became_right = interval_of_difference(values, [[0.0] * n])
    assert became_right == pytest.approx((low / seeds, high / seeds), abs=1e-8)
    opposite = [[0.0] * n] + [[1.0] * n] * (seeds - 1)
    became_wrong = interval_of_difference(opposite, [[1.0] * n])
    assert became_wrong == pytest.approx((-high / seeds, -low / seeds), abs=1e-8)


def test_the_difference_of_a_mean_over_seeds_is_paired_by_document():
    """Broken by unpaired resampling: documents vary far more than the difference does."""
    random = np.random.default_rng(1)
    base = random.normal(0, 10, size=200)
    rows = [list(base + 0.5 + random.normal(0, 0.1, size=200)) for _ in range(3)]
    interval = interval_of_difference(rows, [list(base)])
    assert interval is not None
    assert interval[0] < 0.5 < interval[1]
    assert interval[1] - interval[0] < 0.05
    by_median = interval_of_difference(rows, [list(base)], lambda values: float(np.median(values)))
    assert by_median is not None
    assert by_median[0] < 0.5 < by_median[1] < by_median[0] + 0.5
    other_seeds = [list(base + 0.1 * seed) for seed in range(3)]  # their mean is 0.1 above base
    shifted = interval_of_difference(rows, other_seeds)
    assert shifted == pytest.approx((interval[0] - 0.1, interval[1] - 0.1))
    by_median = interval_of_difference(rows, other_seeds, lambda values: float(np.median(values)))
    assert by_median is not None
    assert by_median[0] < 0.4 < by_median[1] < by_median[0] + 0.5


def test_an_empty_text_counts_as_one_of_the_texts():
    """Draws of the empty text alone have no perplexity.

    They are left out, in the difference too.
    """
    texts = [(-20.0, 10), (0.0, 0), (-30.0, 10)]
    other_texts = [(-22.0, 10), (0.0, 0), (-31.0, 10)]
    low, high = score_interval(texts, weighted_perplexity)  # type: ignore[misc]
    assert low == pytest.approx(np.exp(2))
    assert high == pytest.approx(np.exp(3))
    interval = interval_of_difference([texts], [other_texts], weighted_perplexity)
    assert interval is not None
    low, high = interval
    assert low < high < 0


Experiment = Callable[[np.random.Generator, int], tuple[float, Interval]]
"""(generator, documents) -> the truth, and the interval of what was drawn."""


def accuracy(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    truth = random.uniform(0.05, 0.95)
    return truth, score_interval(random.binomial(1, truth, n).tolist())


def continuous(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    return 1.0, score_interval(random.gamma(2.0, 0.5, n).tolist())


def perplexity(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    words = random.integers(20, 200, n)
    level = random.uniform(1, 3)
    losses = words * random.normal(level, 0.4, n)
    scores = [(-x, int(w)) for x, w in zip(losses, words, strict=True)]
    return math.exp(level), score_interval(scores, weighted_perplexity)


def paired_accuracy(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    up, down = random.uniform(0.01, 0.2, size=2)
    value, base = np.array([[1, 0], [0, 1], [1, 1]])[
        random.choice(3, size=n, p=[up, down, 1 - up - down])
    ].T
    return up - down, interval_of_difference([value.tolist()], [base.tolist()])


def paired_continuous(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    base = random.gamma(2.0, 5.0, n)
    return 0.1, interval_of_difference(
        [(base + random.normal(0.1, 1, n)).tolist()], [base.tolist()]
    )


def paired_perplexity(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    words = random.integers(20, 200, n)
    base = words * random.normal(2, 0.4, n)
    changed = base + words * random.normal(-0.02, 0.1, n)
    values_a = [(-x, int(w)) for x, w in zip(changed, words, strict=True)]
    values_b = [(-x, int(w)) for x, w in zip(base, words, strict=True)]
    return math.exp(1.98) - math.exp(2), interval_of_difference(
        [values_a], [values_b], weighted_perplexity
    )


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
    means = [np.mean(task_values) for task_values in drawn]
    return float(truths.mean()), interval_of_mean_of_tasks(means, list(map(score_interval, drawn)))


def seeds(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    return 0.3, over_seeds(random.normal(0.3, 0.05, size=5).tolist()).interval


def share_of_tokens(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    tokens = random.integers(5, 40, n)
    return 0.6, ratio(random.binomial(tokens, random.beta(6, 4, n)), tokens).interval


def correlation(random: np.random.Generator, n: int) -> tuple[float, Interval]:
    truth = random.uniform(-0.8, 0.8)
    x, y = random.multivariate_normal([0, 0], [[1, truth], [truth, 1]], size=n).T
    lines = []
    for balance, together in zip(x, y, strict=True):
        lines.append(
            {
                "capacity": None,
                "load_balance": {"value": balance},
                "collaboration": {"value": together},
                "specialization": {"value": 0.0},
            }
        )
    return truth, correlations(lines)[0]["ci95"]


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, 100, 1000])
@pytest.mark.parametrize(
    "experiment", [accuracy, paired_accuracy, mean_over_seeds, difference_over_seeds, mean_of_tasks]
)
def test_intervals_of_shares_cover(experiment, n, fewer_resamples):
    assert 0.93 <= coverage(experiment, 1000, n) <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("n", [100, 500])
@pytest.mark.parametrize(
    "experiment",
    [
        continuous,
        paired_continuous,
        share_of_tokens,
        seeds,
        correlation,
        perplexity,
        paired_perplexity,
    ],
)
def test_intervals_of_other_numbers_cover(experiment, n, fewer_resamples):
    slow = {"perplexity": 100 if n == 100 else 50, "continuous": 200, "correlation": 100}
    times = slow.get(experiment.__name__.removeprefix("paired_"), 1000)
    slack = 3 * math.sqrt(0.95 * 0.05 / times) - 0.02 if times < 1000 else 0.0
    assert 0.93 - slack <= coverage(experiment, times, n) <= 0.97 + slack


@pytest.fixture
def fewer_resamples(monkeypatch):
    """A tenth: a limit's rank is then known within 0.5%.

    This costs a coverage of 95% about 0.1%.
    """
    monkeypatch.setattr(statistics, "RESAMPLES", statistics.RESAMPLES // 10)


def coverage(experiment: Experiment, times: int, n: int) -> float:
    random = np.random.default_rng(7)
    covered = 0
    for _ in range(times):
        truth, (low, high) = experiment(random, n)
        covered += low <= truth <= high
    return covered / times


def test_holm_is_that_of_the_textbook():
    random = np.random.default_rng(0)
    for m in (1, 2, 7, 30):
        p = random.random(m) ** 3
        assert holm(list(p)) == pytest.approx(list(multipletests(p, method="holm")[1]))


def test_a_score_that_is_no_mean():
    random = np.random.default_rng(2)
    baseline = list(random.normal(0, 1, 31))
    assert randomization_test([value + 1 for value in baseline], baseline, np.median) == 1 / (
        SLOW_SWAPS + 1
    )
    assert randomization_test(baseline, baseline, np.median) == 1.0
    assert randomization_test(baseline[1:] + baseline[:1], baseline, np.median) > 0.05


@pytest.mark.parametrize("name", ["weighted_perplexity", "bits_per_byte", "perplexity"])
def test_a_perplexity_is_tested_as_all_its_swaps_are(name):
    """The p of the log-likelihoods is that of perplexities, over all swaps of nine documents."""
    from lm_eval.api.registry import aggregation_registry

    aggregate = aggregation_registry[name]
    random = np.random.default_rng(4)
    words = random.integers(5, 40, 9)
    losses_a = -words * random.normal(1.5, 0.1, 9)
    losses_b = -words * random.normal(1.47, 0.1, 9)
    if name == "perplexity":
        values_a = list(losses_a / 20)
        values_b = list(losses_b / 20)
    else:
        values_a = list(zip(losses_a.tolist(), words.tolist(), strict=True))
        values_b = list(zip(losses_b.tolist(), words.tolist(), strict=True))
    differences = []
    for swap in product((False, True), repeat=9):
        side_a = []
        side_b = []
        for value_a, value_b, swapped in zip(values_a, values_b, swap, strict=True):
            side_a.append(value_b if swapped else value_a)
            side_b.append(value_a if swapped else value_b)
        differences.append(abs(aggregate(side_a) - aggregate(side_b)))
    p = np.mean(np.asarray(differences) >= differences[0] * (1 - 1e-9))
    assert 0.01 < p < 0.5
    p_value = randomization_test(values_a, values_b, aggregate)
    assert p_value == pytest.approx(p, abs=5 * (p * (1 - p) / SWAPS) ** 0.5)


def test_a_perplexity_over_other_words_has_no_log_likelihoods():
    assert log_likelihoods([(-1.0, 2)], [(-1.0, 3)], weighted_perplexity) is None
    assert log_likelihoods([(-1.0, 2)], [(-1.0, 2)], max) is None


def test_p_over_seeds_is_students_paired_test():
    from scipy.stats import ttest_rel

    values_a = [0.5, 0.52, 0.57, 0.49]
    values_b = [0.45, 0.5, 0.5, 0.5]
    differences = [value_a - value_b for value_a, value_b in zip(values_a, values_b, strict=True)]
    assert p_over_seeds(differences) == pytest.approx(ttest_rel(values_a, values_b).pvalue)
    assert p_over_seeds([0.0, 0.0]) == 1.0
    assert p_over_seeds([0.1, 0.1]) is None
    assert p_over_seeds([0.1]) is None


def test_differences_that_differ_by_rounding_have_no_spread():
    assert 0.3 - 0.2 != 0.4 - 0.3
    assert p_over_seeds([0.3 - 0.2, 0.4 - 0.3]) is None
    assert p_over_seeds([0.1 + 0.2 - 0.3, 0.0]) == 1.0
    assert p_over_seeds([0.1, 0.1001]) is not None


def over_documents(differences: list[float]) -> float:
    return randomization_test(differences, [0.0] * len(differences))


@pytest.mark.parametrize(
    ("won", "lost"), [(1, 0), (4, 0), (0, 5), (6, 0), (0, 8), (9, 1), (8, 3), (5, 5)]
)
def test_p_over_documents_is_mcnemars_where_all_seeds_agree(won, lost):
    """Broken by a normal approximation: it tells four documents, whose exact p is 0.125."""
    p = mcnemar(won, lost)
    p_value = over_documents([1.0] * won + [-1.0] * lost + [0.0] * 200)
    assert p_value == pytest.approx(p, abs=5 * (p * (1 - p) / SWAPS) ** 0.5 + 1e-3)
    assert (p_value < 0.05) is (p < 0.05)


def test_p_over_documents_of_nothing_changed_and_of_a_document_without_a_number():
    assert over_documents([0.0, 0.0, 0.0]) == over_documents([]) == 1.0
    assert over_documents([float("nan"), 1.0, 1.0]) == 1.0


def test_paired_difference():
    values = [1.0] * 60 + [0.0] * 40
    before = [1.0] * 50 + [0.0] * 50
    result = paired(values, before)
    assert result.n == 100
    assert result.difference == pytest.approx(0.1)
    assert result.p_mcnemar == pytest.approx(2 * 0.5**10)
    low, high = result.interval
    assert 0.03 < low < 0.1 < high < 0.18
    assert result.p_permutation is None
    same_values = paired(values, values)
    assert same_values.interval == pytest.approx(tango(0, 0, 100))
    unchanged = {"p_randomization": None, "to_right": 0, "to_wrong": 0, "equal": False}
    written = {
        "n": 100,
        "difference": 0.0,
        "ci95": list(same_values.interval),
        "p_mcnemar": 1.0,
    } | unchanged
    assert plain(same_values) == written
    assert Paired.model_validate(written) == same_values


def test_unequal_documents_are_refused():
    with pytest.raises(ValueError, match="cannot be paired"):
        paired([1.0, 0.0], [1.0])


def test_differences_within_rounding_have_no_test():
    """Broken by a p for runs that are equal, and by ties that count as changes."""
    before = [0.1 * n for n in range(1, 41)]
    values = [value + 1e-7 for value in before]
    assert paired(values, before).p_permutation == 1e-4, "without a bound each change counts"
    same_values = paired(values, before, equal=[True] * 40)
    assert same_values.equal
    assert same_values.p_permutation is None
    assert same_values.p_mcnemar is None
    assert paired(before, before).equal, "equal values need no bound"
    three_changed = [value + 1.0 for value in before[:3]]
    moved = three_changed + [value + 1e-7 for value in before[3:]]
    exact = three_changed + before[3:]
    tied = paired(moved, before, equal=[False] * 3 + [True] * 37)
    assert not tied.equal
    assert tied.p_permutation == randomization_test(exact, before) > 0.2


def test_a_perplexity_is_told_where_nearly_all_documents_agree():
    random = np.random.default_rng(3)
    words = random.integers(5, 40, 50).tolist()
    before = [(-1.5 * count, count) for count in words]
    better = [(-1.49 * count, count) for count in words]
    for aggregate in (weighted_perplexity, bits_per_byte):
        assert paired(better, before, aggregate).p_permutation == 1e-4
    changes = zip(words, random.normal(0, 1, 50), strict=True)
    noise = [(-1.5 * count + change, count) for count, change in changes]
    assert paired(noise, before, weighted_perplexity).p_permutation > 0.05


def test_by_hand():
    """The two-way table of a textbook's kind, computed step by step."""
    values_SN = np.array([[1.0, 2, 4], [2, 2, 5], [0, 1, 4], [1, 4, 6], [3, 3, 5]])
    estimate = crossed_mean(values_SN)
    assert estimate is not None
    assert estimate.mean == pytest.approx(values_SN.mean())
    seeds, examples = values_SN.shape
    mean = sum(map(sum, values_SN)) / 15
    rows = [sum(row) / 3 for row in values_SN]
    columns = [sum(column) / 5 for column in values_SN.T]
    of_seeds = 3 * sum((row - mean) ** 2 for row in rows) / 4
    of_examples = 5 * sum((column - mean) ** 2 for column in columns) / 2
    squares = 0.0
    for s in range(seeds):
        for n in range(examples):
            squares += (values_SN[s, n] - rows[s] - columns[n] + mean) ** 2
    of_residuals = squares / 8
    total = of_seeds + of_examples - of_residuals
    degrees = total**2 / (of_seeds**2 / 4 + of_examples**2 / 2 + of_residuals**2 / 8)
    low, high = estimate.interval
    half = abs(_quantile(0.05, degrees)) * (total / 15) ** 0.5
    assert high - mean == pytest.approx(mean - low) == pytest.approx(half)
    assert (mean / (total / 15) ** 0.5) == pytest.approx(abs(_quantile(estimate.p, degrees)))


def _quantile(p: float, degrees: float) -> float:
    from scipy.stats import t

    return float(t.ppf(p / 2, degrees))


def test_seeds_that_agree_leave_the_test_over_examples():
    examples_N = np.random.default_rng(0).normal(0.1, 1, 300)
    estimate = crossed_mean(np.tile(examples_N, (6, 1)))
    assert estimate is not None
    assert estimate.p == pytest.approx(ttest_1samp(examples_N, 0).pvalue, rel=1e-6)


def test_too_few_seeds_or_examples_have_no_such_test():
    assert crossed_mean(np.ones((4, 100))) is None
    assert crossed_mean(np.ones((5, 1))) is None
    equal = crossed_mean(np.zeros((5, 10)))
    assert equal is not None
    assert equal.p == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "examples"), [(5, 200), (10, 200)])
@pytest.mark.parametrize("of_seeds", [0.02, 0.05])
def test_a_true_hypothesis_is_rejected_in_about_5_percent(seeds, examples, of_seeds):
    """4,000 experiments: the standard error of 5% is 0.34%, and the bounds
    are 3 of them about 4% to 6.5%.

    The larger p of a test over seeds and one over examples rejects up to 11% of them.
    """
    random = np.random.default_rng(1)
    p_values = []
    for _ in range(4000):
        values_SN = (
            random.normal(0, of_seeds, (seeds, 1))
            + random.normal(0, 0.3, (1, examples))
            + random.normal(0, 0.5, (seeds, examples))
        )
        estimate = crossed_mean(values_SN)
        assert estimate is not None
        p_values.append(estimate.p)
    assert 0.03 < np.mean(np.array(p_values) < 0.05) < 0.075


def test_draws_without_a_score_are_left_out():
    """The area under the ROC curve needs right and wrong answers.

    It is the share of pairs in the right order.
    """

    def area(values):
        right = [score for gold, score in values if gold]
        wrong = [score for gold, score in values if not gold]
        if not right or not wrong:
            raise ValueError("one class")
        in_order = [score > lower for score, lower in product(right, wrong)]
        return float(np.mean(in_order))

    values = [(0, 0.1), (0, 0.4), (1, 0.35), (1, 0.8)]
    other_values = [(0, 0.5), (0, 0.4), (1, 0.35), (1, 0.8)]
    low, high = statistics.score_interval(values, area)
    assert 0 <= low <= area(values) == 0.75 <= high <= 1
    difference = paired(values, other_values, area)
    assert difference.difference == 0.25
    assert difference.interval is not None
    assert difference.p_permutation == 1.0


def test_scikit_learns_warnings_of_draws_reach_no_user():
    """In some draws all answers are alike, of which scikit-learn warns each time."""
    values = [(gold, gold) for gold in (0, 0, 0, 1)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        score_interval(values, aggregation_of_metric("mcc"))
        paired(values, values[::-1], aggregation_of_metric("mcc"))
    assert caught == []
