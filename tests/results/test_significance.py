"""Breaks if a corrected p is not Holm's, or if the randomization test is not the exact test on few documents.

Breaks if two runs on the same documents are not compared document by document, by the test of their scores.

The test over seeds and examples together. Broken by: a variance that is left out or counted twice, other degrees of
freedom, a test that rejects a true hypothesis more often than it says.
"""

from itertools import product

import numpy as np
import pytest
from lm_eval.api.metrics import bits_per_byte, weighted_perplexity
from scipy.stats import ttest_1samp
from statsmodels.stats.multitest import multipletests

from moe_lab.results.measured import Paired
from moe_lab.results.significance import (
    SLOW_SWAPS,
    SWAPS,
    crossed_mean,
    holm,
    log_likelihoods,
    p_over_seeds,
    paired,
    randomization_test,
)
from moe_lab.results.statistics import mcnemar, tango


def test_holm_is_that_of_the_textbook():
    random = np.random.default_rng(0)
    for m in (1, 2, 7, 30):
        p = random.random(m) ** 3
        assert holm(list(p)) == pytest.approx(list(multipletests(p, method="holm")[1]))


def test_a_score_that_is_no_mean():
    random = np.random.default_rng(2)
    baseline = list(random.normal(0, 1, 31))
    assert randomization_test([value + 1 for value in baseline], baseline, np.median) == 1 / (SLOW_SWAPS + 1)
    assert randomization_test(baseline, baseline, np.median) == 1.0
    assert randomization_test(baseline[1:] + baseline[:1], baseline, np.median) > 0.05


@pytest.mark.parametrize("name", ["weighted_perplexity", "bits_per_byte", "perplexity"])
def test_a_perplexity_is_tested_as_all_its_swaps_are(name):
    """The p of the log-likelihoods is that of the perplexities themselves, over all swaps of nine documents."""
    from lm_eval.api.registry import aggregation_registry

    aggregate = aggregation_registry[name]
    random = np.random.default_rng(4)
    words = random.integers(5, 40, 9)
    runs = [-words * random.normal(level, 0.1, 9) for level in (1.5, 1.47)]
    if name == "perplexity":
        mine, theirs = (list(run / 20) for run in runs)
    else:
        mine, theirs = (list(zip(run.tolist(), words.tolist(), strict=True)) for run in runs)
    differences = []
    for swap in product((0, 1), repeat=9):
        sides = [
            [(one, other)[side ^ swapped] for one, other, swapped in zip(mine, theirs, swap, strict=True)]
            for side in (0, 1)
        ]
        differences.append(abs(aggregate(sides[0]) - aggregate(sides[1])))
    p = np.mean(np.asarray(differences) >= differences[0] * (1 - 1e-9))
    assert 0.01 < p < 0.5
    found = randomization_test(mine, theirs, aggregate)
    assert found == pytest.approx(p, abs=5 * (p * (1 - p) / SWAPS) ** 0.5)


def test_a_perplexity_over_other_words_has_no_log_likelihoods():
    assert log_likelihoods([(-1.0, 2)], [(-1.0, 3)], weighted_perplexity) is None
    assert log_likelihoods([(-1.0, 2)], [(-1.0, 2)], max) is None


def test_p_over_seeds_is_students_paired_test():
    from scipy.stats import ttest_rel

    mine, theirs = [0.5, 0.52, 0.57, 0.49], [0.45, 0.5, 0.5, 0.5]
    differences = [one - other for one, other in zip(mine, theirs, strict=True)]
    assert p_over_seeds(differences) == pytest.approx(ttest_rel(mine, theirs).pvalue)
    assert p_over_seeds([0.0, 0.0]) == 1.0
    assert p_over_seeds([0.1, 0.1]) is None and p_over_seeds([0.1]) is None


def test_differences_that_differ_by_rounding_have_no_spread():
    assert 0.3 - 0.2 != 0.4 - 0.3
    assert p_over_seeds([0.3 - 0.2, 0.4 - 0.3]) is None
    assert p_over_seeds([0.1 + 0.2 - 0.3, 0.0]) == 1.0
    assert p_over_seeds([0.1, 0.1001]) is not None


def over_documents(differences: list[float]) -> float:
    return randomization_test(differences, [0.0] * len(differences))


@pytest.mark.parametrize(("won", "lost"), [(1, 0), (4, 0), (0, 5), (6, 0), (0, 8), (9, 1), (8, 3), (5, 5)])
def test_p_over_documents_is_mcnemars_where_all_seeds_agree(won, lost):
    """Broken by a normal approximation: it tells four documents, whose exact p is 0.125."""
    p = mcnemar(won, lost)
    found = over_documents([1.0] * won + [-1.0] * lost + [0.0] * 200)
    assert found == pytest.approx(p, abs=5 * (p * (1 - p) / SWAPS) ** 0.5 + 1e-3)
    assert (found < 0.05) is (p < 0.05)


def test_p_over_documents_of_nothing_changed_and_of_a_document_without_a_number():
    assert over_documents([0.0, 0.0, 0.0]) == over_documents([]) == 1.0
    assert over_documents([float("nan"), 1.0, 1.0]) == 1.0


def test_paired_difference():
    values, before = [1.0] * 60 + [0.0] * 40, [1.0] * 50 + [0.0] * 50
    result = paired(values, before)
    assert result.n == 100 and result.difference == pytest.approx(0.1)
    assert result.p_mcnemar == pytest.approx(2 * 0.5**10)
    low, high = result.interval
    assert 0.03 < low < 0.1 < high < 0.18
    assert result.p_permutation is None
    same = paired(values, values)
    assert same.interval == pytest.approx(tango(0, 0, 100))
    unchanged = {"p_randomization": None, "to_right": 0, "to_wrong": 0, "equal": False}
    written = {"n": 100, "difference": 0.0, "ci95": list(same.interval), "p_mcnemar": 1.0} | unchanged
    assert same.to_json() == written and Paired.from_json(written) == same


def test_unequal_documents_are_refused():
    with pytest.raises(ValueError, match="cannot be paired"):
        paired([1.0, 0.0], [1.0])


def test_differences_within_rounding_have_no_test():
    """Broken by a p for runs that are equal, and by ties that count as changes."""
    before = [0.1 * n for n in range(1, 41)]
    values = [value + 1e-7 for value in before]
    assert paired(values, before).p_permutation == 1e-4, "without a bound each change counts"
    same = paired(values, before, equal=[True] * 40)
    assert (same.equal, same.p_permutation, same.p_mcnemar) == (True, None, None)
    assert paired(before, before).equal, "equal values need no bound"
    moved = [value + (1.0 if n < 3 else 1e-7) for n, value in enumerate(before)]
    ties = [n >= 3 for n in range(40)]
    tied = paired(moved, before, equal=ties)
    exact = [value + (1.0 if n < 3 else 0.0) for n, value in enumerate(before)]
    assert not tied.equal and tied.p_permutation == randomization_test(exact, before) > 0.2


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
    found = crossed_mean(values_SN)
    assert found is not None and found.mean == pytest.approx(values_SN.mean())
    seeds, examples = values_SN.shape
    mean = sum(map(sum, values_SN)) / 15
    rows, columns = [sum(row) / 3 for row in values_SN], [sum(column) / 5 for column in values_SN.T]
    of_seeds = 3 * sum((row - mean) ** 2 for row in rows) / 4
    of_examples = 5 * sum((column - mean) ** 2 for column in columns) / 2
    rest = (
        sum(
            (values_SN[s, n] - rows[s] - columns[n] + mean) ** 2
            for s in range(seeds)
            for n in range(examples)
        )
        / 8
    )
    total = of_seeds + of_examples - rest
    degrees = total**2 / (of_seeds**2 / 4 + of_examples**2 / 2 + rest**2 / 8)
    low, high = found.interval
    half = abs(_quantile(0.05, degrees)) * (total / 15) ** 0.5
    assert high - mean == pytest.approx(mean - low) == pytest.approx(half)
    assert (mean / (total / 15) ** 0.5) == pytest.approx(abs(_quantile(found.p, degrees)))


def _quantile(p: float, degrees: float) -> float:
    from scipy.stats import t

    return float(t.ppf(p / 2, degrees))


def test_seeds_that_agree_leave_the_test_over_examples():
    examples_N = np.random.default_rng(0).normal(0.1, 1, 300)
    found = crossed_mean(np.tile(examples_N, (6, 1)))
    assert found is not None and found.p == pytest.approx(ttest_1samp(examples_N, 0).pvalue, rel=1e-6)


def test_too_few_seeds_or_examples_have_no_such_test():
    assert crossed_mean(np.ones((4, 100))) is None and crossed_mean(np.ones((5, 1))) is None
    equal = crossed_mean(np.zeros((5, 10)))
    assert equal is not None and equal.p == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "examples"), [(5, 200), (10, 200)])
@pytest.mark.parametrize("of_seeds", [0.02, 0.05])
def test_a_true_hypothesis_is_rejected_in_about_5_percent(seeds, examples, of_seeds):
    """4,000 experiments: the standard error of 5% is 0.34%, and the bounds are 3 of them about 4% to 6.5%.

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
        found = crossed_mean(values_SN)
        assert found is not None
        p_values.append(found.p)
    assert 0.03 < np.mean(np.array(p_values) < 0.05) < 0.075
