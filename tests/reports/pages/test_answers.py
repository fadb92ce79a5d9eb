"""Answers on pages.

Broken by the wrong choice that is called the answer, a change in the wrong direction, a document
that is paired with another one or lost.
"""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from moe_lab.reports.pages import runs_page
from moe_lab.reports.pages import shown_answers as module
from moe_lab.reports.pages.answer_kinds import CHANGED, KINDS, UNCHANGED, kind_of_pair
from moe_lab.reports.pages.answers import Answer, answer_of
from moe_lab.reports.pages.run_answers import shown_answers
from moe_lab.reports.pages.shown_answers import answer_data, first_difference, shown_answer
from moe_lab.results.model import RunResult
from moe_lab.results.reading import find_run
from moe_lab.results.samples import Sample, read_samples
from tests.support.pages import tree
from tests.support.stored_runs import choice_line, generated_line, pair_of_runs, stored_run
from tests.support.views import write_runs_page

# The answer of a line of a sample log


def test_the_first_of_several_generated_answers_and_their_vote():
    answers = {"resps": [["one 4", "two 5", "three 5"]], "filtered_resps": ["5"]}
    line = generated_line(3, ("one 4", 1.0)) | answers
    answer = answer_of(Sample.of(line), "exact_match")
    assert answer.text == "one 4\n\n[first of 3 answers; evaluated: 5]"


@pytest.mark.parametrize(("metric", "picked"), [("acc", 1), ("acc_norm", 2), ("f1", None)])
def test_the_choice_that_the_metric_takes(metric, picked):
    """Per character (3, 5 and 7 of them): -1, -0.5, -0.4."""
    line = choice_line(0, ((-3.0, -2.5, -2.8), 1.0))
    answer = answer_of(Sample.of(line), metric)
    assert answer.scores == (-3.0, -2.5, -2.8)
    assert answer.text is None
    assert answer.picked == picked


def test_prompts_as_choices():
    """WinoGrande: the sentence is completed by each name, and its end is scored."""
    line = choice_line(0, ((-3.0, -1.0, -2.0), 1.0))
    for number, request in enumerate(line["arguments"].values()):
        request["arg_0"] = f"prompt {number}"
        request["arg_1"] = " is the end"
    answer = answer_of(Sample.of(line), "acc")
    assert answer.prompt == " is the end"
    assert answer.choices == ("prompt 0", "prompt 1", "prompt 2")
    assert answer.picked == 1


def test_choices_without_the_question_do_not_count():
    """With acc_mutual_info the choices are asked again without it."""
    line = choice_line(0, ((-3.0, -2.0, -4.0), 1.0))
    line["metrics"] = ["acc", "acc_mutual_info"]
    line["acc_mutual_info"] = 1.0
    for number in range(3):
        choice = line["arguments"][f"gen_args_{number}"]["arg_1"]
        line["arguments"][f"gen_args_{number + 3}"] = {"arg_0": "", "arg_1": choice}
        line["resps"].append([["-0.5", "False"]])
    answer = answer_of(Sample.of(line), "acc")
    assert answer.scores == (-3.0, -2.0, -4.0)
    assert answer.picked == 1


def test_a_text_that_is_scored_as_a_whole_has_no_answer():
    line = {
        "doc_id": 0,
        "filter": "none",
        "metrics": [],
        "arguments": {"gen_args_0": {"arg_0": "a text"}},
        "resps": [[["-3.0"]]],
    }
    assert answer_of(Sample.of(line), "word_perplexity") is None


@pytest.mark.parametrize(
    ("filtered", "extracted"),
    [
        (["65"], "65"),
        (["[invalid]"], "[invalid]"),
        (["5 + 60"], None),
        (["def f():" + " " * 40 + "5 + 60"], None),
        ([["65", "66"]], None),
        ([], None),
    ],
)
def test_what_a_filter_takes_from_a_text_is_kept_if_it_is_not_the_text(filtered, extracted):
    """A filter of code puts the prompt in front of the answer."""
    line = generated_line(0, ("5 + 60 ", 1.0)) | {"filtered_resps": filtered}
    assert answer_of(Sample.of(line), "exact_match").extracted == extracted


# Where two answers differ


@pytest.mark.parametrize(
    ("text", "other_text", "position"),
    [
        ("93 + 14", "9 + 14", 0),
        ("a b c", "a b d", 4),
        ("same", "same", 4),
        ("a b", "a b c", 3),
        ("a b", "a bc", 2),
        ("", "x", 0),
    ],
)
def test_the_first_word_that_differs(text, other_text, position):
    assert first_difference(text, other_text) == position
    assert first_difference(other_text, text) == position


@pytest.mark.parametrize(
    ("text", "other_text", "units", "last_word"),
    [
        ("a b c", "a b d", 4, "d"),
        ("👩‍🚀 is 7", "👩‍🚀 is 8", 9, "8"),
        ("𝑥 = 1", "𝑥 = 2", 5, "2"),
    ],
)
def test_the_position_of_a_difference_is_that_of_the_pages_script(
    text, other_text, units, last_word
):
    """JavaScript counts units of UTF-16: an emoji outside of the basic plane has two."""
    sample = Sample.of({"doc_id": 0, "filter": "none", "metrics": [], "target": "x"})
    answers = [Answer(sample, "prompt", text), Answer(sample, "prompt", other_text)]
    differs = shown_answer(answers, [1, 0], CHANGED)["differs"]
    assert differs == units
    in_utf_16 = other_text.encode("utf-16-le")
    assert in_utf_16[2 * differs :].decode("utf-16-le") == last_word


# Pairs of answers


def paired(output: Path, before: list, after: list, **changes: Any) -> list[dict[str, Any]]:
    """What a page has of RoE's answers next to the base model's, whose files are complete."""
    runs = pair_of_runs(output, before, after, **changes)
    answers, problems = shown_answers(runs, ["base", "roe"])
    assert problems == []
    return answers


def changed_kinds(answers: list[dict[str, Any]]) -> dict[int, str]:
    """{document: its kind} of changed answers."""
    return {answer["document"]: answer["kind"] for answer in answers if answer["changed"]}


def test_the_baseline_is_found_by_its_whole_id(tmp_path):
    base, roe = pair_of_runs(tmp_path, [("1", 1.0)], [("2", 0.0)])
    same_beginning = "b" * 8
    stored_run(tmp_path, same_beginning + "c" * 56, [generated_line(0, ("3", 0.0))], "another")
    [answer], _ = shown_answers([base, roe], ["base", "roe"])
    assert answer["base"] == "1"
    assert answer["own"] == "2"
    assert roe.base_id == base.run_id
    assert find_run(tmp_path / "runs", same_beginning + "d" * 56) is None
    assert read_samples(roe)["t"][0].responses == [["2"]]


def random_answers(rng: random.Random) -> list[tuple[str, float]]:
    return [(rng.choice("xyz"), float(rng.random() < 0.5)) for _ in range(60)]


def kind_of(before: tuple[str, float], after: tuple[str, float]) -> str | None:
    """None for an answer that did not change."""
    text_before, score_before = before
    text_after, score_after = after
    if score_before == 0 and score_after == 1:
        return "wrong to right"
    if score_before == 1 and score_after == 0:
        return "right to wrong"
    if text_before == text_after:
        return None
    if score_before == 1:
        return "right, with another answer"
    return "wrong, with another answer"


def test_kinds_are_those_of_a_plain_loop(tmp_path):
    rng = random.Random(0)
    before = random_answers(rng)
    after = random_answers(rng)
    expected = {}
    for document in range(60):
        kind = kind_of(before[document], after[document])
        if kind is not None:
            expected[document] = kind
    assert len(set(expected.values())) == 4

    answers = paired(tmp_path, before, after)

    assert len(answers) == 60
    assert changed_kinds(answers) == expected
    order = [KINDS.index(answer["kind"]) for answer in answers]
    assert order == sorted(order)


def test_both_answers_stand_side_by_side(tmp_path):
    [answer] = paired(tmp_path, [("5 + 2 = 7", 0.0)], [("5 * 2 = 10", 1.0)])
    assert answer["base"] == "5 + 2 = 7"
    assert answer["own"] == "5 * 2 = 10"
    assert answer["differs"] == 2
    assert answer["prompt"] == "Question 0"
    assert answer["target"] == "target 0"
    assert answer["run"] == "roe"
    assert answer["task"] == "t"


def test_choices_have_both_scores(tmp_path):
    before = [((-1.0, -2.0, -3.0), 1.0), ((-1.0, -2.0, -3.0), 1.0)]
    after = [((-2.5, -2.0, -3.0), 0.0), ((-1.1, -2.0, -3.0), 1.0)]
    answers = paired(tmp_path, before, after, of_choices=True)
    # another log-probability alone, of document 1, is no other answer
    assert changed_kinds(answers) == {0: "right to wrong"}
    changed = answers[0]
    assert changed["options"][0] == [" red", -1.0, -2.5]
    assert changed["picked"] == [0, 1]
    assert changed["target"] == "red"


def test_scores_that_are_no_right_or_wrong(tmp_path):
    answers = paired(tmp_path, [("a", 0.3), ("b", 0.5)], [("c", 0.4), ("b", 0.5)])
    assert changed_kinds(answers) == {0: CHANGED}
    assert answers[0]["scores"] == [0.3, 0.4]


@pytest.mark.parametrize(("text", "kind"), [("b", UNCHANGED), ("c", CHANGED)])
def test_equal_answers_without_a_score_are_unchanged(text, kind):
    """The score is NaN where a log has null. NaN equals no number, not even NaN."""
    base = answer_of(Sample.of(generated_line(0, ("b", None))), "exact_match")
    own = answer_of(Sample.of(generated_line(0, (text, None))), "exact_match")
    assert kind_of_pair([base, own], [math.nan, math.nan], [None, None]) == kind


@pytest.mark.parametrize(
    ("higher_is_better", "kind"), [(True, "wrong to right"), (False, "right to wrong")]
)
def test_a_change_from_0_to_1_is_wrong_if_lower_is_better(tmp_path, higher_is_better, kind):
    _, roe = pair_of_runs(tmp_path, [("a", 0.0)], [("b", 1.0)])
    direction = {"higher_is_better": {"t": {"exact_match": higher_is_better}}}
    roe = RunResult(roe.content | direction, roe.folder)
    [answer], _ = shown_answers([roe], ["roe"])
    assert answer["kind"] == kind


def test_only_lines_of_the_same_document_and_filter_are_paired(tmp_path):
    base_lines = [generated_line(2, ("z", 0.0)), generated_line(0, ("x", 0.0))]
    of_another_filter = [line | {"filter": "other", "resps": [["y"]]} for line in base_lines]
    roe_lines = [
        generated_line(0, ("b", 1.0)),
        generated_line(1, ("c", 1.0)),
        generated_line(2, ("d", 1.0)),
    ]
    stored_run(tmp_path, "b" * 64, base_lines + of_another_filter, "base", samples={"t": [0, 2]})
    roe = stored_run(tmp_path, "a" * 64, roe_lines, baseline="b" * 64)

    answers, problems = shown_answers([roe], ["roe"])

    assert problems == []
    pairs = sorted((answer["document"], answer["base"], answer["own"]) for answer in answers)
    assert pairs == [(0, "x", "b"), (2, "z", "d")]


def test_missing_results_of_the_base_run_are_named_and_the_answers_stay(tmp_path):
    base, roe = pair_of_runs(tmp_path, [("a", 1.0)], [("c", 0.0)])
    (base.folder / "results.json").unlink()
    answers, problems = shown_answers([roe], ["roe"])
    assert len(answers) == 1
    assert "not stored here" in problems[0]


def test_missing_samples_of_the_base_run_are_named(tmp_path):
    base, roe = pair_of_runs(tmp_path, [("a", 1.0)], [("c", 0.0)])
    (base.folder / "samples_t.jsonl").unlink()
    answers, problems = shown_answers([roe], ["roe"])
    assert answers == []
    assert "it is gone" in problems[0]


# The data of a page


def test_what_is_cut_and_left_out_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PROMPTS", 6)
    monkeypatch.setattr(module, "SHORTEST_CUT", 1)
    monkeypatch.setattr(runs_page, "MOST", 1)
    runs = pair_of_runs(tmp_path, [("a", 1.0), ("b", 0.0)], [("c", 0.0), ("d", 1.0)])
    page = tree(write_runs_page(runs, tmp_path / "page.html"))
    assert "2 of 2 answers differ" in page.text_content()
    assert "1 more are in the runs" in page.text_content()

    [text] = page.xpath("//script[@id='answer-data']/text()")
    data = json.loads(text)
    assert data["prompts"] == [["tion 1", 4]]
    assert [answer["kind"] for answer in data["answers"]] == ["wrong to right"]


def test_all_answers_are_there_and_each_prompt_once(tmp_path):
    """Broken by an unchanged answer that is lost, and by a base run shown next to itself."""
    texts_and_scores = [("1", 1.0), ("2", 0.0), ("3", 0.5)]
    base, roe = pair_of_runs(tmp_path, texts_and_scores, texts_and_scores)
    answers, _ = shown_answers([base, roe, roe], ["base", "roe", "again"])
    assert {answer["run"] for answer in answers} == {"roe", "again"}
    assert changed_kinds(answers) == {}
    kinds_of_roe = [answer["kind"] for answer in answers if answer["run"] == "roe"]
    assert kinds_of_roe == ["wrong, unchanged", "right, unchanged", "unchanged"]

    data = answer_data(answers)
    prompts = [prompt for prompt, _ in data["prompts"]]
    assert prompts == ["Question 1", "Question 0", "Question 2"]
    right = [answer["right"] for answer in data["answers"] if "right" in answer]
    assert right == [False, False, True, True]


def test_a_run_that_is_compared_with_none_has_its_answers(tmp_path):
    base, _ = pair_of_runs(tmp_path, [("1", 1.0), ("2", 0.0)], [("1", 1.0), ("2", 0.0)])
    [wrong, right], problems = shown_answers([base], ["base"])
    assert problems == []
    assert (wrong["kind"], wrong["own"]) == ("wrong", "2")
    assert (right["kind"], right["own"]) == ("right", "1")
    assert "base" not in wrong
    assert "base" not in right
