"""Breaks if two runs on the same documents are not compared document by document, by the test of their scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from lm_eval.api.metrics import bits_per_byte, weighted_perplexity

from moe_lab.results.measured import Paired
from moe_lab.results.significance import paired, randomization_test
from moe_lab.results.statistics import mcnemar, tango


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


def test_flips_are_counted_both_ways():
    result = paired([1.0, 1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0, 0.0])
    assert (result.to_right, result.to_wrong) == (2, 1)
    lower = paired([1.0, 1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0, 0.0], lower_is_better=True)
    assert lower == replace(result, to_right=result.to_wrong, to_wrong=result.to_right)
    assert paired([0.5, 0.1], [0.2, 0.3]).to_right is None


def test_pairing_is_tighter_than_two_intervals():
    noise = np.random.default_rng(1).normal(0, 5, size=200)
    result = paired(list(noise + 1), list(noise))
    assert result.interval == pytest.approx([1, 1]) and result.p_mcnemar is None


def test_unequal_documents_are_refused():
    with pytest.raises(ValueError, match="cannot be paired"):
        paired([1.0, 0.0], [1.0])


def test_the_p_of_right_and_wrong_is_mcnemars():
    values, before = [1.0] * 8 + [0.0] * 2 + [1.0, 0.0], [0.0] * 8 + [1.0] * 2 + [1.0, 0.0]
    assert paired(values, before).p_mcnemar == mcnemar(8, 2)


def test_the_p_of_other_scores_is_that_of_random_swaps():
    random = np.random.default_rng(0)
    before = list(random.normal(0, 1, 40))
    values = [value + change for value, change in zip(before, random.normal(0.1, 0.3, 40), strict=True)]
    found = paired(values, before)
    assert (found.p_mcnemar, found.to_right) == (None, None)
    assert found.p_permutation == randomization_test(values, before)


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


def test_a_sign_is_that_of_the_first():
    assert paired([0.5, 0.7], [0.2, 0.3]).difference == pytest.approx(0.35)


def test_a_perplexity_is_told_where_nearly_all_documents_agree():
    random = np.random.default_rng(3)
    words = random.integers(5, 40, 50).tolist()
    before = [(-1.5 * count, count) for count in words]
    better = [(-1.49 * count, count) for count in words]
    for aggregate in (weighted_perplexity, bits_per_byte):
        assert paired(better, before, aggregate).p_permutation == 1e-4
    noise = [
        (-1.5 * count + change, count) for count, change in zip(words, random.normal(0, 1, 50), strict=True)
    ]
    assert paired(noise, before, weighted_perplexity).p_permutation > 0.05
