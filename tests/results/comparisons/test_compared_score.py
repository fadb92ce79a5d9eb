"""Breaks if a row's numbers are not those of a plain loop, or if its verdict has the wrong direction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

from moe_lab.results.comparisons.scores import MCNEMAR, RANDOMIZATION, compared_score

RANDOM = np.random.default_rng(0)
BINARY = [(float(x), float(y), x == y) for x, y in RANDOM.integers(2, size=(60, 2))]
NUMBERS = list(range(100, 160))


def row(values, better=True, aggregate=None, documents=None):
    return compared_score(
        "b", "t", "acc,none", values, aggregate=aggregate, higher_is_better=better, documents=documents
    )


@pytest.mark.parametrize("better", (True, None, False))
def test_right_and_wrong(better: bool | None) -> None:
    right, wrong = [], []
    for number, (mine, theirs, _) in zip(NUMBERS, BINARY, strict=True):
        if mine != theirs:
            (right if (theirs > mine) == (better is not False) else wrong).append(number)
    found = row(BINARY, better, documents=NUMBERS)
    assert found.flips == {"to_right": right, "to_wrong": wrong}
    assert (found.to_right, found.to_wrong) == (len(right), len(wrong))
    expected = binomtest(len(right), len(right) + len(wrong), 0.5).pvalue
    assert found.p == pytest.approx(expected, rel=1e-12)
    assert (found.n, found.test) == (60, MCNEMAR)
    assert (found.a, found.b) == tuple(np.mean(BINARY, axis=0)[:2])
    assert found.difference == pytest.approx(found.b - found.a)
    assert found.interval is not None and found.interval[0] < found.difference < found.interval[1]


def test_other_scores_have_a_randomization_test_and_no_flips() -> None:
    values = [(float(x), float(x) + 1, False) for x in RANDOM.normal(size=30)]
    found = row(values, documents=NUMBERS[:30])
    assert (found.test, found.p, found.to_right, found.flips) == (RANDOMIZATION, 1e-4, None, None)


def test_equal_scores_have_no_test() -> None:
    found = row([(0.3, 0.3 + 1e-9, True), (0.5, 0.5, True)])
    assert (found.equal, found.p, found.test, found.verdict) == (True, None, None, "equal within rounding")
    assert not found.told_from_chance


def test_an_aggregate_that_is_no_mean() -> None:
    found = row([(1.0, 4.0, False), (3.0, 9.0, False), (2.0, 7.0, False)], aggregate=max)
    assert (found.a, found.b, found.difference) == (3.0, 9.0, 6.0)


def test_one_document_has_no_interval() -> None:
    assert row([(0.0, 1.0, False)]).interval is None


@pytest.mark.parametrize(
    ("p_holm", "better", "difference", "verdict"),
    [
        (0.05, True, 0.1, "not significant"),
        (0.049, True, 0.1, "better"),
        (0.049, True, -0.1, "worse"),
        (0.049, False, 0.1, "worse"),
        (0.049, False, -0.1, "better"),
        (0.049, None, 0.1, "different"),
    ],
)
def test_verdict(p_holm: float, better: bool | None, difference: float, verdict: str) -> None:
    changed = replace(row(BINARY), p_holm=p_holm, higher_is_better=better, difference=difference)
    assert (changed.verdict, changed.told_from_chance) == (verdict, verdict != "not significant")
