"""Pairs of answers. Broken by a pair of two documents, by another filter's line, and by a score where less is better."""

from __future__ import annotations

import pytest

from moe_lab.reports.pages.answers import answer_pairs
from moe_lab.results.model import RunResult
from moe_lab.results.samples import Sample, read_samples
from tests.support.stored_runs import generated_line, pair_of_runs


def pairs_of(output, before, after, **results):
    base, own = pair_of_runs(output, before, after)
    lines = [read_samples(run)["t"] for run in (base, own)]
    return list(answer_pairs(RunResult(dict(own) | results), "t", lines[0][::-1], lines[1]))


def test_documents_are_paired_by_their_numbers(tmp_path):
    before, after = [("a", 0.0), ("b", 1.0), ("c", 1.0)], [("d", 1.0), ("e", 0.0), ("f", 1.0)]
    found = pairs_of(tmp_path, before, after)
    assert [(pair.number, pair.before.text, pair.after.text) for pair in found] == [
        (0, "a", "d"),
        (1, "b", "e"),
        (2, "c", "f"),
    ]
    assert [pair.right for pair in found] == [(False, True), (True, False), (True, True)]
    assert [pair.flipped for pair in found] == [True, True, False]


@pytest.mark.parametrize(("better", "right"), [(True, (False, True)), (False, (True, False))])
def test_less_may_be_better(tmp_path, better, right):
    [pair] = pairs_of(tmp_path, [("a", 0.0)], [("b", 1.0)], higher_is_better={"t": {"exact_match": better}})
    assert pair.right == right and pair.flipped


def test_a_share_is_neither_right_nor_wrong(tmp_path):
    [pair] = pairs_of(tmp_path, [("a", 0.25)], [("b", 1.0)])
    assert pair.right is None and not pair.flipped


def test_lines_of_another_filter_or_document_are_left_out(tmp_path):
    _, own = pair_of_runs(tmp_path, [("a", 0.0)], [("b", 1.0)])
    lines = [generated_line(1, ("x", 0.0)), generated_line(0, ("y", 0.0)) | {"filter": "other"}]
    before = list(map(Sample.of, lines))
    assert not list(answer_pairs(own, "t", before, read_samples(own)["t"]))
