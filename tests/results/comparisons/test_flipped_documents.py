"""Breaks if the prompt or an answer of a document that flips is lost, or is another document's."""

from __future__ import annotations

from pathlib import Path

from moe_lab.results.comparisons.comparison import compare
from tests.support.lm_eval_logs import evaluation, samples_of


def test_documents_that_flip_anywhere_have_all_answers(tmp_path: Path) -> None:
    a = evaluation(tmp_path, "a", {"t": samples_of(acc=[0.0, 0.0, 1.0])})
    b1 = evaluation(tmp_path, "b1", {"t": samples_of(acc=[0.0, 1.0, 1.0])})
    b2 = evaluation(tmp_path, "b2", {"t": samples_of(acc=[0.0, 0.0, 0.0])})
    evaluations = [a, b1, b2]
    documents = compare(evaluations).to_json()["documents"]["t"]
    assert list(documents) == [1, 2]
    first, second = documents.values()
    assert (first["prompt"], first["target"]) == ("Question: document 1", "target of document 1")
    answers = {key: found["none"]["resps"] for key, found in second["answers"].items()}
    expected = {"a": 1.0, "b1": 1.0, "b2": 0.0}
    assert answers == {key: [[f"answer {{'acc': {acc}}}"]] for key, acc in expected.items()}


def test_multiple_choice_has_its_choices(tmp_path: Path) -> None:
    lines = [samples_of(acc=[acc]) for acc in (0.0, 1.0)]
    for [line] in lines:
        line["arguments"] = {f"gen_args_{i}": {"arg_0": "Q:", "arg_1": f" {i}"} for i in range(3)}
    evaluations = [evaluation(tmp_path, key, {"t": each}) for key, each in zip("ab", lines, strict=True)]
    documents = compare(evaluations).to_json()["documents"]
    assert documents["t"][0]["choices"] == [" 0", " 1", " 2"]


def test_without_flips_nothing_is_kept(tmp_path: Path) -> None:
    evaluations = [evaluation(tmp_path, key, {"t": samples_of(acc=[1.0])}) for key in "ab"]
    assert compare(evaluations).documents == {}
