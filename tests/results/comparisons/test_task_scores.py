"""Breaks if a score is aggregated by another function than lm-eval's, or if one that cannot be is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.metrics import weighted_perplexity

from moe_lab.results.comparisons.comparison import compare_task
from tests.support.lm_eval_logs import evaluation, samples_of

PERPLEXITY = {"t": {"metric_list": [{"metric": "word_perplexity"}]}}


def rows_of(
    tmp_path: Path, mine: list[Any], theirs: list[Any], *more: dict[str, Any]
) -> tuple[Any, list[str]]:
    mine_more, theirs_more = more or ({}, {})
    a = evaluation(tmp_path, "a", {"t": mine}, **mine_more)
    b = evaluation(tmp_path, "b", {"t": theirs}, **theirs_more)
    notes: list[str] = []
    return compare_task(a, b, "t", {}, notes), notes


def test_every_metric_and_filter_of_both(tmp_path: Path) -> None:
    mine = samples_of("strict", acc=[1.0, 0.0], f1=[0.5, 0.25]) + samples_of("flexible", acc=[1.0, 1.0])
    theirs = samples_of("strict", acc=[1.0, 1.0]) + samples_of("flexible", acc=[0.0, 1.0], em=[1.0, 1.0])
    rows, notes = rows_of(tmp_path, mine, theirs)
    assert [(row.metric, row.baseline, row.value) for row in rows] == [
        ("acc,strict", 0.5, 1),
        ("acc,flexible", 1, 0.5),
    ]
    assert notes == [
        "Only in a, and not compared: f1,strict of t.",
        "Only in b, and not compared: em,flexible of t.",
    ]


@pytest.mark.parametrize("named", (True, False), ids=("named", "by the metric"))
def test_a_perplexity_is_lm_evals(tmp_path: Path, named: bool) -> None:
    entry = {"metric": "word_perplexity"} | ({"aggregation": "weighted_perplexity"} if named else {})
    values = [[(-10.0, 5), (-7.0, 2), (-3.0, 4)], [(-11.0, 5), (-6.0, 2), (-3.5, 4)]]
    scores = [weighted_perplexity(each) for each in values]
    more = [
        {"scores": {"t": {"word_perplexity,none": score}}, "configs": {"t": {"metric_list": [entry]}}}
        for score in scores
    ]
    [row], notes = rows_of(tmp_path, *(samples_of(word_perplexity=each) for each in values), *more)
    assert (row.baseline, row.value) == pytest.approx(tuple(scores))
    assert row.difference == pytest.approx(scores[1] - scores[0])
    assert not notes


def test_a_score_that_the_samples_do_not_give_is_not_compared(tmp_path: Path) -> None:
    lines = samples_of(acc=[1.0, 0.0])
    rows, notes = rows_of(tmp_path, lines, lines, {}, {"scores": {"t": {"acc,none": 0.75}}})
    assert not rows
    assert notes[0].startswith("Not compared: acc,none of t, whose score")


def test_a_score_without_any_value_is_not_compared(tmp_path: Path) -> None:
    """No answer of the second evaluation has a verdict."""
    mine, theirs = samples_of(acc=[1.0, 0.0]), samples_of(acc=[1.0, 0.0])
    for line in theirs:
        del line["acc"]
        line["metrics"] = []
    rows, notes = rows_of(tmp_path, mine, theirs, {}, {"scores": {"t": {"acc,none": 0.5}}})
    assert not rows
    assert notes[0].startswith("Not compared: acc,none of t, whose score")


def test_documents_without_a_value_are_left_out_of_both(tmp_path: Path) -> None:
    """An answer that a judge has no verdict on has no metric."""
    mine, theirs = samples_of(acc=[1.0, 0.0, 1.0, 0.0]), samples_of(acc=[0.0, 1.0, 1.0, 0.0])
    del mine[0]["acc"]
    mine[0]["metrics"] = []
    [row], notes = rows_of(tmp_path, mine, theirs)
    assert (row.n, row.baseline, row.value) == (3, 1 / 3, 2 / 3)
    assert row.flips == (1, 0)
    assert notes == ["acc,none of t: 1 documents without a value are left out."]


def test_lower_is_better_turns_the_flips(tmp_path: Path) -> None:
    better = {"higher_is_better": {"t": {"acc": False}}}
    [row], _ = rows_of(tmp_path, samples_of(acc=[1.0, 0.0]), samples_of(acc=[0.0, 0.0]), better, better)
    assert (row.flips, row.lower_is_better) == ((1, 0), True)
