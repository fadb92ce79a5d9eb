"""Answers on pages. Broken by the wrong choice that is called the answer, a flip in the wrong direction, a document that
is paired with another one or lost."""

import json
import random
from collections import Counter

import pytest

from moe_lab.reports.pages import runs_page
from moe_lab.reports.pages import shown_answers as module
from moe_lab.reports.pages.answer_kinds import CHANGED, KINDS
from moe_lab.reports.pages.answers import Answer, answer_of
from moe_lab.reports.pages.run_answers import shown_answers
from moe_lab.reports.pages.shown_answers import answer_data, first_difference, shown_answer
from moe_lab.results.model import RunResult
from moe_lab.results.reading import find_run
from moe_lab.results.samples import Sample, read_samples
from tests.support.pages import tree
from tests.support.stored_runs import choice_line, generated_line, pair_of_runs, stored_run
from tests.support.views import write_runs_page


def test_the_baseline_is_found_by_its_whole_id(tmp_path):
    base, own = pair_of_runs(tmp_path, [("1", 1.0)], [("2", 0.0)])
    stored_run(tmp_path, "b" * 8 + "c" * 56, [generated_line(0, ("3", 0.0))], "another")
    [one], _ = shown_answers([base, own], ["base", "roe"])
    assert (one["base"], one["own"]) == ("1", "2") and own.base_id == base.run_id
    assert find_run(tmp_path / "runs", "b" * 8 + "d" * 56) is None
    assert read_samples(own)["t"][0].responses == [["2"]]


def test_the_first_of_several_generated_answers_and_their_vote():
    answers = {"resps": [["one 4", "two 5", "three 5"]], "filtered_resps": ["5"]}
    line = generated_line(3, ("one 4", 1.0)) | answers
    assert (
        answer_of(Sample.of(line), "exact_match").text
        == "one 4\n\n[first of 3 answers; evaluated: 5]"
    )


@pytest.mark.parametrize("metric, picked", [("acc", 1), ("acc_norm", 2), ("f1", None)])
def test_the_choice_that_the_metric_takes(metric, picked):
    """Per character (3, 5 and 7 of them): -1, -0.5, -0.4."""
    found = answer_of(Sample.of(choice_line(0, ((-3.0, -2.5, -2.8), 1.0))), metric)
    assert found.scores == (-3.0, -2.5, -2.8) and found.text is None
    assert found.picked == picked


def test_prompts_as_choices():
    """WinoGrande: the sentence is completed by each name, and its end is scored."""
    line = choice_line(0, ((-3.0, -1.0, -2.0), 1.0))
    for number, request in enumerate(line["arguments"].values()):
        request |= {"arg_0": f"prompt {number}", "arg_1": " is the end"}
    found = answer_of(Sample.of(line), "acc")
    assert found.prompt == " is the end" and found.choices == ("prompt 0", "prompt 1", "prompt 2")
    assert found.picked == 1


def test_choices_without_the_question_do_not_count():
    """With acc_mutual_info the choices are asked again without it."""
    both = {"metrics": ["acc", "acc_mutual_info"], "acc_mutual_info": 1.0}
    line = choice_line(0, ((-3.0, -2.0, -4.0), 1.0)) | both
    for number in range(3):
        choice = line["arguments"][f"gen_args_{number}"]["arg_1"]
        line["arguments"][f"gen_args_{number + 3}"] = {"arg_0": "", "arg_1": choice}
        line["resps"].append([["-0.5", "False"]])
    assert answer_of(Sample.of(line), "acc").scores == (-3.0, -2.0, -4.0)
    assert answer_of(Sample.of(line), "acc").picked == 1


def test_a_text_that_is_scored_as_a_whole_has_no_answer():
    line = {"doc_id": 0, "filter": "none", "metrics": []}
    line |= {"arguments": {"gen_args_0": {"arg_0": "a text"}}, "resps": [[["-3.0"]]]}
    assert answer_of(Sample.of(line), "word_perplexity") is None


@pytest.mark.parametrize(
    "one, other, position",
    [
        ("93 + 14", "9 + 14", 0),
        ("a b c", "a b d", 4),
        ("same", "same", 4),
        ("a b", "a b c", 3),
        ("a b", "a bc", 2),
        ("", "x", 0),
    ],
)
def test_the_first_word_that_differs(one, other, position):
    assert first_difference(one, other) == first_difference(other, one) == position


@pytest.mark.parametrize(
    ("one", "other", "units"),
    [("a b c", "a b d", 4), ("👩‍🚀 is 7", "👩‍🚀 is 8", 9), ("𝑥 = 1", "𝑥 = 2", 5)],
)
def test_the_position_of_a_difference_is_that_of_the_pages_script(one, other, units):
    """JavaScript counts units of UTF-16: an emoji outside of the basic plane has two."""
    sample = Sample.of({"doc_id": 0, "filter": "none", "metrics": [], "target": "x"})
    answers = [Answer(sample, "prompt", text) for text in (one, other)]
    differs = shown_answer(answers, [1, 0], CHANGED)["differs"]
    assert differs == units
    assert other.encode("utf-16-le")[2 * differs :].decode("utf-16-le") == other.rpartition(" ")[2]


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


def kinds(output, before, after, **changes):
    runs = pair_of_runs(output, before, after, **changes)
    found, problems = shown_answers(runs, ["base", "roe"])
    assert not problems
    return found, {each["document"]: each["kind"] for each in found if each["changed"]}


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
    assert shown == expected and len(found) == 60
    assert len(Counter(expected.values())) == 4
    order = [KINDS.index(each["kind"]) for each in found]
    assert order == sorted(order)


def test_both_answers_stand_side_by_side(tmp_path):
    found, _ = kinds(tmp_path, [("5 + 2 = 7", 0.0)], [("5 * 2 = 10", 1.0)])
    [one] = found
    assert (one["base"], one["own"], one["differs"]) == ("5 + 2 = 7", "5 * 2 = 10", 2)
    assert (one["prompt"], one["target"], one["run"], one["task"]) == (
        "Question 0",
        "target 0",
        "roe",
        "t",
    )


def test_choices_have_both_scores(tmp_path):
    same = ((-1.0, -2.0, -3.0), 1.0)
    after = [((-2.5, -2.0, -3.0), 0.0), ((-1.1, -2.0, -3.0), 1.0)]
    found, shown = kinds(tmp_path, [same, same], after, of_choices=True)
    assert shown == {0: "right to wrong"}, "another log-probability alone is no other answer"
    one = found[0]
    assert (
        one["options"][0] == [" red", -1.0, -2.5]
        and one["picked"] == [0, 1]
        and one["target"] == "red"
    )


def test_scores_that_are_no_right_or_wrong(tmp_path):
    found, shown = kinds(tmp_path, [("a", 0.3), ("b", 0.5)], [("c", 0.4), ("b", 0.5)])
    assert shown == {0: CHANGED} and found[0]["scores"] == [0.3, 0.4]


@pytest.mark.parametrize(
    ("higher_is_better", "kind"), [(True, "wrong to right"), (False, "right to wrong")]
)
def test_a_change_from_0_to_1_is_wrong_if_lower_is_better(tmp_path, higher_is_better, kind):
    _, run = pair_of_runs(tmp_path, [("a", 0.0)], [("b", 1.0)])
    content = run.content | {"higher_is_better": {"t": {"exact_match": higher_is_better}}}
    run = RunResult(content, run.folder)
    assert [answer["kind"] for answer in shown_answers([run], ["roe"])[0]] == [kind]


def test_only_lines_of_the_same_document_and_filter_are_paired(tmp_path):
    lines = [generated_line(2, ("z", 0.0)), generated_line(0, ("x", 0.0))]
    lines += [line | {"filter": "other", "resps": [["y"]]} for line in lines]
    stored_run(tmp_path, "b" * 64, lines, "base", samples={"t": [0, 2]})
    answers = [generated_line(i, (text, 1.0)) for i, text in enumerate("bcd")]
    own = stored_run(tmp_path, "a" * 64, answers, baseline="b" * 64)
    found, problems = shown_answers([own], ["roe"])
    assert not problems
    assert {(one["document"], one["base"], one["own"]) for one in found} == {
        (2, "z", "d"),
        (0, "x", "b"),
    }


def test_what_is_cut_and_left_out_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PROMPTS", 6)
    monkeypatch.setattr(module, "SHORTEST_CUT", 1)
    monkeypatch.setattr(runs_page, "MOST", 1)
    runs = pair_of_runs(tmp_path, [("a", 1.0), ("b", 0.0)], [("c", 0.0), ("d", 1.0)])
    page = tree(write_runs_page(runs, tmp_path / "page.html"))
    assert (
        "2 of 2 answers differ" in page.text_content()
        and "1 more are in the runs" in page.text_content()
    )
    data = json.loads(page.xpath("//script[@id='answer-data']/text()")[0])
    assert data["prompts"] == [["tion 1", 4]]
    assert [one["kind"] for one in data["answers"]] == ["wrong to right"]


@pytest.mark.parametrize("gone", ["results.json", "samples_t.jsonl"])
def test_missing_files_are_named(tmp_path, gone):
    base, own = pair_of_runs(tmp_path, [("a", 1.0)], [("c", 0.0)])
    (base.folder / gone).unlink()
    found, problems = shown_answers([own], ["roe"])
    assert len(found) == (0 if gone.startswith("samples") else 1), "its own answers, not lost"
    assert ("it is gone" if gone.startswith("samples") else "not stored here") in problems[0]


def test_all_answers_are_there_and_each_prompt_once(tmp_path):
    """Broken by an unchanged answer that is lost, and by a base run that is shown next to itself."""
    answers = [("1", 1.0), ("2", 0.0), ("3", 0.5)]
    base, roe = pair_of_runs(tmp_path, answers, answers)
    found, _ = shown_answers([base, roe, roe], ["base", "roe", "again"])
    expected = ["wrong, unchanged", "right, unchanged", "unchanged"]
    assert [each["kind"] for each in found if each["run"] == "roe"] == expected
    assert {each["run"] for each in found} == {"roe", "again"} and not any(
        each["changed"] for each in found
    )
    data = answer_data(found)
    assert [prompt for prompt, _ in data["prompts"]] == ["Question 1", "Question 0", "Question 2"]
    assert [each["right"] for each in data["answers"] if "right" in each] == [
        False,
        False,
        True,
        True,
    ]


def test_a_run_that_is_compared_with_none_has_its_answers(tmp_path):
    base, _ = pair_of_runs(tmp_path, [("1", 1.0), ("2", 0.0)], [("1", 1.0), ("2", 0.0)])
    found, problems = shown_answers([base], ["base"])
    expected = [("wrong", None, "2"), ("right", None, "1")]
    assert [(each["kind"], each.get("base"), each["own"]) for each in found] == expected
    assert not problems
