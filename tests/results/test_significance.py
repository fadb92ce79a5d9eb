"""Breaks if a corrected p is not Holm's, or if the randomization test is not the exact test on few documents."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from moe_lab.results.significance import (
    SLOW_SWAPS,
    SWAPS,
    holm,
    log_likelihoods,
    p_over_documents,
    p_over_seeds,
    randomization_test,
)
from moe_lab.results.statistics import mcnemar


def test_holm_is_that_of_the_textbook():
    """Step down: the smallest p times m, the next times m - 1, never below an earlier one, never above 1."""
    random = np.random.default_rng(0)
    for m in (1, 2, 7, 30):
        p = random.random(m) ** 3
        expected = np.empty(m)
        largest = 0.0
        for rank, index in enumerate(sorted(range(m), key=lambda i: p[i])):
            largest = max(largest, min(1.0, (m - rank) * p[index]))
            expected[index] = largest
        assert holm(list(p)) == pytest.approx(list(expected))
        assert holm(list(p)) == pytest.approx(list(multipletests(p, method="holm")[1]))


def test_a_cell_without_a_test_does_not_count():
    assert holm([0.01, None, 0.04]) == [pytest.approx(0.02), None, pytest.approx(0.04)]
    assert holm([None]) == [None]
    assert holm([]) == []


def exact(values: list[float], baseline: list[float]) -> float:
    differences = np.asarray(values) - baseline
    swapped = [abs(np.dot(signs, differences)) for signs in product((-1, 1), repeat=len(values))]
    return float(np.mean(np.asarray(swapped) >= abs(differences.sum()) - 1e-9))


def test_the_randomization_test_is_close_to_all_swaps():
    random = np.random.default_rng(1)
    for shift in (0.0, 0.5, 1.0):
        values, baseline = list(random.normal(shift, 1, 12)), list(random.normal(0, 1, 12))
        p = exact(values, baseline)
        # five standard errors of a share of SWAPS draws: wrong once in a million
        assert randomization_test(values, baseline) == pytest.approx(
            p, abs=5 * (p * (1 - p) / SWAPS) ** 0.5 + 1e-3
        )


def test_for_right_and_wrong_it_is_mcnemars():
    values, baseline = [1.0] * 9 + [0.0] * 3 + [1.0] * 8, [0.0] * 9 + [1.0] * 3 + [1.0] * 8
    p = mcnemar(9, 3)
    assert randomization_test(values, baseline) == pytest.approx(p, abs=5 * (p * (1 - p) / SWAPS) ** 0.5)


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
    from lm_eval.api.metrics import weighted_perplexity

    assert log_likelihoods([(-1.0, 2)], [(-1.0, 3)], weighted_perplexity) is None
    assert log_likelihoods([(-1.0, 2)], [(-1.0, 2)], max) is None


def test_it_is_seeded():
    values, baseline = [0.1, 0.4, 0.9, 0.3], [0.2, 0.1, 0.5, 0.7]
    assert randomization_test(values, baseline) == randomization_test(values, baseline)


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


@pytest.mark.parametrize(("won", "lost"), [(1, 0), (4, 0), (0, 5), (6, 0), (0, 8), (9, 1), (8, 3), (5, 5)])
def test_p_over_documents_is_mcnemars_where_all_seeds_agree(won, lost):
    """Broken by a normal approximation: it tells four documents, whose exact p is 0.125."""
    p = mcnemar(won, lost)
    found = p_over_documents([1.0] * won + [-1.0] * lost + [0.0] * 200)
    assert found == pytest.approx(p, abs=5 * (p * (1 - p) / SWAPS) ** 0.5 + 1e-3)
    assert (found < 0.05) is (p < 0.05)


def test_p_over_documents_is_that_of_all_swaps_of_means_over_seeds():
    differences = [1 / 3, 2 / 3, -1 / 3, 1.0, 0.0, 2 / 3, 1 / 3, 0.0, -2 / 3, 1.0]
    p = exact(differences, [0.0] * 10)
    assert p_over_documents(differences) == pytest.approx(p, abs=5 * (p * (1 - p) / SWAPS) ** 0.5)


def test_a_document_without_a_number_tells_nothing():
    assert p_over_documents([float("nan"), 1.0, 1.0]) == 1.0


def test_p_over_documents_of_nothing_changed():
    assert p_over_documents([0.0, 0.0, 0.0]) == p_over_documents([]) == 1.0
