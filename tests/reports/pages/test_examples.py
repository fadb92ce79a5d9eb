"""Changed answers. Broken by a flip in the wrong direction, a document that is paired with another one, or one that is
lost."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from moe_lab.reports.pages import examples as module
from moe_lab.reports.pages.examples import CHANGED, KINDS, answer_data, examples_of
from tests.support.stored_runs import pair_of_runs


def kinds(output, before, after, **changes):
    runs = pair_of_runs(output, before, after, **changes)
    found = examples_of(runs, ["base", "roe"])
    assert not found.problems
    return found, {each.document: each.kind for each in found.answers if each.changed}


def test_kinds_are_those_of_a_plain_loop(tmp_path):
    random.seed(0)
    before, after = (
        [(random.choice("xyz"), float(random.random() < 0.5)) for _ in range(60)] for _ in range(2)
    )
    found, shown = kinds(tmp_path, before, after)
    expected = {}
    for number, ((text, value), (other, changed)) in enumerate(zip(before, after, strict=True)):
        if (value, changed) in ((0.0, 1.0), (1.0, 0.0)):
            expected[number] = "wrong to right" if changed else "right to wrong"
        elif text != other:
            expected[number] = f"{'right' if value else 'wrong'}, with another answer"
    assert shown == expected and found.documents == 60
    assert len(Counter(expected.values())) == 4
    order = [KINDS.index(each.kind) for each in found.answers]
    assert order == sorted(order)


def test_both_answers_stand_side_by_side(tmp_path):
    found, _ = kinds(tmp_path, [("5 + 2 = 7", 0.0)], [("5 * 2 = 10", 1.0)])
    [one] = found.answers
    assert (one.base, one.own, one.differs) == ("5 + 2 = 7", "5 * 2 = 10", 2)
    assert (one.prompt, one.target, one.run, one.task) == ("Question 0", "target 0", "roe", "t")


def test_choices_have_both_scores(tmp_path):
    same = ((-1.0, -2.0, -3.0), 1.0)
    found, shown = kinds(
        tmp_path, [same, same], [((-2.5, -2.0, -3.0), 0.0), ((-1.1, -2.0, -3.0), 1.0)], of_choices=True
    )
    assert shown == {0: "right to wrong"}, "another log-probability alone is no other answer"
    one = found.answers[0]
    assert [(pair.before, pair.after) for pair in found.pairs["roe"]] == [(True, False), (True, True)]
    assert one.options[0] == [" red", -1.0, -2.5] and one.picked == [0, 1] and one.target == "red"


def test_scores_that_are_no_right_or_wrong(tmp_path):
    found, shown = kinds(tmp_path, [("a", 0.3), ("b", 0.5)], [("c", 0.4), ("b", 0.5)])
    assert shown == {0: CHANGED} and found.answers[0].scores == [0.3, 0.4]


def test_what_is_cut_and_left_out_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PROMPTS", 6)
    monkeypatch.setattr(module, "SHORTEST_CUT", 1)
    monkeypatch.setattr(module, "MOST", 1)
    found, shown = kinds(tmp_path, [("a", 1.0), ("b", 0.0)], [("c", 0.0), ("d", 1.0)])
    assert shown == {1: "wrong to right"} and found.left_out == 1
    assert answer_data(found.answers)["prompts"] == [["tion 1", 4]]


@pytest.mark.parametrize("gone", ["results.json", "samples_t.jsonl"])
def test_missing_files_are_named(tmp_path, gone):
    base, own = pair_of_runs(tmp_path, [("a", 1.0)], [("c", 0.0)])
    (base.folder / gone).unlink()
    found = examples_of([own], ["roe"])
    assert len(found.answers) == (0 if gone.startswith("samples") else 1), "its own answers, not lost"
    assert ("it is gone" if gone.startswith("samples") else "not stored here") in found.problems[0]


def test_an_odd_answer_is_named_and_the_others_are_shown(tmp_path):
    """Broken by a traceback, and by half of the answers of a run."""
    base, roe = pair_of_runs(tmp_path, [("1", 0.0), ("2", 0.0)], [("3", 1.0), ("4", 1.0)])
    file = roe.folder / "samples_t.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[1]["resps"] = [[]]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = examples_of([base, roe], ["base", "roe"])
    assert found.answers == [] and found.documents == 0
    assert len(found.problems) == 1 and roe.folder.name in found.problems[0]


def test_all_answers_are_there_and_each_prompt_once(tmp_path):
    """Broken by an unchanged answer that is lost, and by a base run that is shown next to itself."""
    base, roe = pair_of_runs(
        tmp_path, [("1", 1.0), ("2", 0.0), ("3", 0.5)], [("1", 1.0), ("2", 0.0), ("3", 0.5)]
    )
    found = examples_of([base, roe, roe], ["base", "roe", "again"])
    assert [each.kind for each in found.answers if each.run == "roe"] == [
        "wrong, unchanged",
        "right, unchanged",
        "unchanged",
    ]
    assert {each.run for each in found.answers} == {"roe", "again"} and found.changed == 0
    data = answer_data(found.answers)
    assert [prompt for prompt, _ in data["prompts"]] == ["Question 1", "Question 0", "Question 2"]
    assert [each["right"] for each in data["answers"] if "right" in each] == [False, False, True, True]


def test_a_run_that_is_compared_with_none_has_its_answers(tmp_path):
    base, _ = pair_of_runs(tmp_path, [("1", 1.0), ("2", 0.0)], [("1", 1.0), ("2", 0.0)])
    found = examples_of([base], ["base"])
    assert [(each.kind, each.base, each.own) for each in found.answers] == [
        ("wrong", None, "2"),
        ("right", None, "1"),
    ]
    assert not found.problems and found.documents == 0
