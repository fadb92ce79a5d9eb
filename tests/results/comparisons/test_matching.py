"""Breaks if a document is paired with another one, or if other questions pass for the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moe_lab.errors import ConfigError
from moe_lab.results.comparisons.comparison import paired_lines
from tests.support.lm_eval_logs import evaluation, sample, samples_of


def pairs_of(tmp_path: Path, mine: list[Any], theirs: list[Any], **more: Any) -> dict[str, list[Any]]:
    a, b = evaluation(tmp_path, "a", {"t": mine}), evaluation(tmp_path, "b", {"t": theirs}, **more)
    return paired_lines(a, b, "t")


def test_documents_are_paired_by_content_whatever_their_order_and_number(tmp_path):
    mine = [sample(i, text=f"text {i}", acc=float(i)) for i in (3, 0, 2)]
    theirs = [sample(10 + i, text=f"text {i}", acc=float(-i)) for i in (2, 3, 0)]
    [(name, pairs)] = pairs_of(tmp_path, mine, theirs).items()
    assert name == "none"
    assert [(x.document, x.values["acc"], y.values["acc"]) for x, y in pairs] == [
        (0, 0, 0),
        (2, 2, -2),
        (3, 3, -3),
    ]


def test_equal_documents_are_paired_in_their_order(tmp_path):
    mine = [sample(i, text="same", acc=float(i)) for i in range(3)]
    pairs = pairs_of(tmp_path, mine, mine)["none"]
    assert [(x.values["acc"], y.values["acc"]) for x, y in pairs] == [(0, 0), (1, 1), (2, 2)]


def test_each_filter_is_paired_on_its_own(tmp_path):
    strict, flexible = samples_of("strict", acc=[0.0, 1.0]), samples_of("flexible", acc=[1.0, 1.0])
    pairs = pairs_of(tmp_path, strict + flexible, flexible + samples_of("other", acc=[0.0, 0.0]))
    assert list(pairs) == ["flexible"]
    assert [(x.filter, y.filter) for x, y in pairs["flexible"]] == [("flexible", "flexible")] * 2


def test_other_documents_are_refused_with_the_first_of_each(tmp_path):
    mine = samples_of(acc=[0.0] * 5)
    theirs = [sample(i, text="" if i < 3 else f"new {i}", acc=0.0) for i in range(9)]
    with pytest.raises(ConfigError) as refused:
        pairs_of(tmp_path, mine, theirs)
    lines = str(refused.value).splitlines()
    assert lines[0] == "Other documents of t: 2 of 5 are only in a and 6 of 9 are only in b."
    assert lines[1] == 'The first only in a is document 3: {"question": "document 3"}'
    assert lines[2] == 'The first only in b is document 3: {"question": "new 3"}'


def test_a_part_of_the_documents_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"t: 3 of 5 are only in a\.\n.*document 2"):
        pairs_of(tmp_path, samples_of(acc=[0.0] * 5), samples_of(acc=[0.0] * 2))


def test_other_prompts_are_refused_with_the_place(tmp_path):
    theirs = samples_of(acc=[0.0] * 4)
    for line in theirs[1:3]:
        line["prompt_hash"] = "other"
        line["arguments"]["gen_args_0"]["arg_0"] = "Question: Document?"
    with pytest.raises(ConfigError) as refused:
        pairs_of(tmp_path, samples_of(acc=[0.0] * 4), theirs, **{"n-shot": {"t": 5}})
    assert str(refused.value).splitlines()[:4] == [
        "Other prompts of t: 2 of 4 documents. The first is document 1, from character 10 on:",
        "  a: 'document 1'",
        "  b: 'Document?'",
        "a has 0 few-shot examples, b has 5.",
    ]


def test_other_right_answers_are_refused(tmp_path):
    theirs = samples_of(acc=[0.0] * 3)
    theirs[2] |= {"target_hash": "other", "target": "42"}
    with pytest.raises(ConfigError, match=r"1 of 3.*document 2, .*\n  a: 'target of document 2'\n  b: '42'"):
        pairs_of(tmp_path, samples_of(acc=[0.0] * 3), theirs)
