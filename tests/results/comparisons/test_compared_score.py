"""Breaks if a row's numbers are not those of a plain loop, or if its verdict has the wrong direction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from moe_lab.results.comparisons.comparison import compare
from moe_lab.results.scores import Score
from tests.support.lm_eval_logs import evaluation, samples_of

RANDOM = np.random.default_rng(0)
BINARY = RANDOM.integers(2, size=(2, 60)).astype(float).tolist()


def row(folder: Path, mine: list[Any], theirs: list[Any], **more: Any) -> dict[str, Any]:
    """The row of comparison.json for the values of one metric."""
    logs = [
        evaluation(folder, key, {"t": samples_of(acc=values)}, **more)
        for key, values in (("a", mine), ("b", theirs))
    ]
    [found] = compare(logs).rows
    return found


@pytest.mark.parametrize("better", (True, None, False))
def test_right_and_wrong(tmp_path: Path, better: bool | None) -> None:
    right, wrong = [], []
    for number, (mine, theirs) in enumerate(zip(*BINARY, strict=True)):
        if mine != theirs:
            (right if (theirs > mine) == (better is not False) else wrong).append(number)
    said = {} if better is None else {"t": {"acc": better}}
    found = row(tmp_path, *BINARY, higher_is_better=said)
    assert found["flips"] == {"to_right": right, "to_wrong": wrong}
    assert (found["to_right"], found["to_wrong"]) == (len(right), len(wrong))
    expected = binomtest(len(right), len(right) + len(wrong), 0.5).pvalue
    assert found["p"] == pytest.approx(expected, rel=1e-12)
    assert (found["n"], found["test"], found["higher_is_better"]) == (60, "McNemar", better)
    assert (found["a"], found["b"]) == pytest.approx(tuple(np.mean(BINARY, axis=1)))
    assert found["difference"] == pytest.approx(found["b"] - found["a"])
    assert found["ci95"][0] < found["difference"] < found["ci95"][1]


def test_other_scores_have_a_permutation_test_and_no_changed_answers(tmp_path: Path) -> None:
    values = RANDOM.normal(size=30)
    found = row(tmp_path, values.tolist(), (values + 1).tolist())
    assert (found["test"], found["p"], found["to_right"], found["flips"]) == ("permutation", 1e-4, None, None)


def test_equal_scores_have_no_test(tmp_path: Path) -> None:
    found = row(tmp_path, [0.3, 0.5], [0.3, 0.5])
    assert (found["equal"], found["p"], found["test"]) == (True, None, None)
    assert (found["verdict"], found["told_from_chance"]) == ("equal within rounding", False)


def test_one_document_has_no_interval(tmp_path: Path) -> None:
    assert row(tmp_path, [0.0], [1.0])["ci95"] is None


@pytest.mark.parametrize(
    ("p_holm", "lower", "difference", "verdict"),
    [
        (0.05, False, 0.1, "not significant"),
        (0.049, False, 0.1, "better"),
        (0.049, False, -0.1, "worse"),
        (0.049, True, 0.1, "worse"),
        (0.049, True, -0.1, "better"),
        (0.049, None, 0.1, "different"),
    ],
)
def test_verdict(p_holm: float, lower: bool | None, difference: float, verdict: str) -> None:
    score = Score(model="", method="", task="t", metric="acc,none", run_id="b", difference=difference)
    changed = replace(score, p_holm=p_holm, lower_is_better=lower)
    assert (changed.verdict, changed.significant) == (verdict, verdict != "not significant")
