"""Broken by another question than the first one that became right, or another layer than the last one."""

from __future__ import annotations

from pathlib import Path

from moe_lab.reports.figures.pathways import chosen_question, sample_rows
from tests.support.stored_traces import run_of


def test_the_question_shown_is_the_first_that_became_right(tmp_path: Path) -> None:
    assert chosen_question(run_of(tmp_path / "a", ["AB", "BAB", "BA", "BA"])) == (2, True)
    assert chosen_question(run_of(tmp_path / "b", ["AA", "AB", "BB"])) == (0, False)


def test_a_question_is_shown_with_its_neighbours_in_the_last_layer(tmp_path: Path) -> None:
    rows = sample_rows(run_of(tmp_path / "run", ["BA"]), 0)
    assert list(dict.fromkeys(row["of"] for row in rows)) == [
        "question, before",
        "question, after",
        "neighbour 1",
        "neighbour 2",
    ]
    assert {row["layer"] for row in rows} == {4}
    first = [row for row in rows if row["of"] == "neighbour 1"]
    assert [row["weight"] for row in first] == [0.05, 0.3, 0.2, 0.45]
    assert [row["expert"] for row in first if row["taken"]] == [1, 3]
    assert (first[0]["distance"], first[0]["kernel_share"]) == (0.5, 0.75)
