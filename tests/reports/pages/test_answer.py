"""Answers in sample logs. Broken by the wrong choice that is called the answer, and a prompt shown as what is read of it."""

from __future__ import annotations

import pytest

from moe_lab.reports.pages.answers import answer_of
from moe_lab.reports.pages.examples import first_difference
from moe_lab.results.samples import Sample
from tests.support.stored_runs import choice_line, generated_line


def test_a_generated_answer():
    found = answer_of(Sample.of(generated_line(3, (" 42", 1.0))), "exact_match")
    assert (found.prompt, found.text, found.choices) == ("Question 3", " 42", ())


def test_the_first_of_several_generated_answers_and_their_vote():
    line = generated_line(3, ("one 4", 1.0)) | {
        "resps": [["one 4", "two 5", "three 5"]],
        "filtered_resps": ["5"],
    }
    assert answer_of(Sample.of(line), "exact_match").text == "one 4\n\n[first of 3 answers; evaluated: 5]"


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
    assert (
        found.prompt == " is the end"
        and found.choices == ("prompt 0", "prompt 1", "prompt 2")
        and found.picked == 1
    )


def test_choices_without_the_question_do_not_count():
    """With acc_mutual_info the choices are asked again without it."""
    line = choice_line(0, ((-3.0, -2.0, -4.0), 1.0)) | {
        "metrics": ["acc", "acc_mutual_info"],
        "acc_mutual_info": 1.0,
    }
    for number in range(3):
        line["arguments"][f"gen_args_{number + 3}"] = {
            "arg_0": "",
            "arg_1": line["arguments"][f"gen_args_{number}"]["arg_1"],
        }
        line["resps"].append([["-0.5", "False"]])
    assert (
        answer_of(Sample.of(line), "acc").scores == (-3.0, -2.0, -4.0)
        and answer_of(Sample.of(line), "acc").picked == 1
    )


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
