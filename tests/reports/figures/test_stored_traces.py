"""Traces of a run. Broken by: traces joined with other documents, a document without a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moe_lab.errors import ResultsError
from moe_lab.reports.figures.traces import read_traces
from tests.support.stored_traces import run_of, scores_of, write_traced_run


def test_questions_are_joined_in_the_order_of_their_documents(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", ["AAA", "BAA", "BBB"])
    assert run.right == [[True, True, True], [False, True, True], [False, False, False]]
    assert run.prompts[1] == "Question: 1?\nAnswer:" and run.golds == ["A"] * 3
    assert run.layers == [3, 4] and run.probabilities("before").shape == (3, 2, 4)


def test_of_doubled_lines_the_last_counts(tmp_path: Path) -> None:
    results = write_traced_run(tmp_path / "run", ["AAA"])
    file = tmp_path / "run" / "traces.jsonl"
    again = json.loads(file.read_text()) | {"scores": scores_of("ABB")}
    file.write_text(file.read_text() + json.dumps(again) + "\n")
    run = read_traces(results)
    assert run is not None and run.right == [[True, False, False]]


def test_a_document_without_a_trace_is_named(tmp_path: Path) -> None:
    results = write_traced_run(tmp_path / "run", ["AAA", "BBB"])
    file = tmp_path / "run" / "traces.jsonl"
    file.write_text(file.read_text().splitlines()[0] + "\n")
    with pytest.raises(ResultsError, match="no trace of document 0"):
        read_traces(results)
