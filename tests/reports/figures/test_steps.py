"""Broken by a share of all questions where only some could change."""

from __future__ import annotations

from pathlib import Path

from moe_lab.reports.figures.traces import step_rows
from tests.support.stored_traces import run_of


def test_changed_answers_are_shares_of_those_that_could_change(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", ["AAB", "AAA", "AAA", "ABA", "BAA"])
    told = [
        (row["accuracy"], row["became_wrong"], row["became_right"], row["loss"]) for row in step_rows(run)
    ]
    assert told == [(0.8, 0.0, 0.0, 2.0), (0.8, 0.25, 1.0, 1.5), (0.8, 0.25, 1.0, 1.0)]


def test_a_share_of_no_question_is_none(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", ["AA", "AB"], losses=[None, None])
    rows = step_rows(run)
    assert [row["became_right"] for row in rows] == [None, None] and rows[1]["loss"] is None
