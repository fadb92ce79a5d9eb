"""Breaks if a function of a task YAML reads a document or an answer wrongly."""

from typing import Any

import pytest

from moe_lab.errors import TaskError
from moe_lab.tasks.documents import gold_choice
from moe_lab.tasks.task_functions import (
    answer_number,
    extract_answers,
    plain_question,
    same_number,
    score_number,
)
from tests.support.documents import BIGBENCH, HELLASWAG, KNOWREF, OPENBOOKQA
from tests.support.runs import choices, load_task, write_jsonl

# answer_format/

FIVE = choices(1)[0] | {"choices": {"text": list("vwxyz"), "label": list("12345")}, "answerKey": "5"}
CASES: dict[str, tuple[str, str, dict[str, Any], str, int]] = {
    "arc_challenge_answer_format": (
        "arc_challenge",
        "test",
        FIVE,
        "Please choose the correct answer to the question: Which colour is number 0?\n\n"
        "Answer1: v Answer2: w Answer3: x Answer4: y Answer5: z\n\n"
        "Answer format: answer1/answer2/answer3/answer4/answer5\n\nthe correct answer is",
        4,
    ),
    "openbookqa_answer_format": (
        "openbookqa",
        "test",
        OPENBOOKQA,
        "Please choose the correct answer to the question: Ice is\n\n"
        "Answer1: hot Answer2: cold Answer3: loud Answer4: old\n\n"
        "Answer format: answer1/answer2/answer3/answer4\n\nthe correct answer is",
        1,
    ),
    "hellaswag_answer_format": (
        "hellaswag",
        "validation",
        HELLASWAG,
        "Please choose the correct ending to complete the given sentence: Cooking: A pot boils. the cook\n\n"
        "Ending1: runs. Ending2: stirs it. Ending3: reads. Ending4: swims.\n\n"
        "Answer format: ending1/ending2/ending3/ending4\n\nthe correct answer is",
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_prompt_and_the_names_to_choose_from(name, tmp_path):
    folder, split, row, prompt, gold = CASES[name]
    write_jsonl(tmp_path / folder / f"{split}.jsonl", [row])
    task = load_task(tmp_path, name, data_folder=folder)
    task.build_all_requests()
    asked = [instance.args for instance in task.instances]
    assert {context for context, _ in asked} == {prompt}
    kind = "ending" if name.startswith("hellaswag") else "answer"
    assert [answer for _, answer in asked] == [f" {kind}{number}" for number in range(1, len(asked) + 1)]
    assert task.doc_to_target(task.task_docs[0]) == gold


def test_examples_end_with_their_answer(tmp_path):
    write_jsonl(tmp_path / "openbookqa" / "test.jsonl", [OPENBOOKQA])
    write_jsonl(tmp_path / "openbookqa" / "train.jsonl", [OPENBOOKQA | {"question_stem": "Fire is"}])
    task = load_task(tmp_path, "openbookqa_answer_format", data_folder="openbookqa", num_fewshot=1)
    task.build_all_requests()
    assert "Fire is" in task.instances[0].args[0]
    assert "the correct answer is answer2\n\nPlease choose" in task.instances[0].args[0]


# arithmetic/


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 + 4 = 7\n#### 7", "7"),
        ("#### 5 apples, not 6", "5"),
        ("First #### 3, no: #### 4", "4"),
        ("#### none, so 12", "12"),
        ("The answer is 1,234.", "1234"),
        ("It costs $1,234,567.50.", "1234567.50"),
        ("He has 12 apples.", "12"),
        ("so -7", "-7"),
        ("10-7", "7"),
        ("10 - 7 = 3.", "3"),
        ("It is 0.5", "0.5"),
        ("It is .5", ".5"),
        ("1, 2, 3", "3"),
        ("12,34", "34"),
        ("about 45%", "45"),
        ("no number", ""),
        ("", ""),
    ],
)
def test_answer_number(text, number):
    assert answer_number(text) == number


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ("15.0", "15", True),
        ("15", "15.0", True),
        ("0.6666667", "0.6666666666666666", True),
        ("0.667", "0.6666666666666666", False),
        ("1000000.5", "1,000,000", True),  # 5e-7 relative
        ("1000002", "1000000", False),
        ("", "15", False),
        ("16", "15", False),
        ("-15", "15", False),
        ("0", "0.0", True),
    ],
)
def test_same_number(answer, gold, same):
    assert same_number(answer, gold) is same


def test_score_reads_the_filtered_answer():
    filtered = extract_answers([["He has 4 + 3 = 7 pens.\n#### 7"], ["I think 8"]], [{}, {}])
    assert filtered == [["7"], ["8"]]
    assert score_number({"answer": "7.0"}, filtered[0]) == {"exact_match": 1.0}
    assert score_number({"answer": "7.0"}, filtered[1]) == {"exact_match": 0.0}


# references/


@pytest.mark.parametrize(
    "inputs, targets, question, options",
    [
        ("Q: Is ice cold?\nA:", ["Yes", "No"], "Q: Is ice cold?", ["Yes", "No"]),
        ("Is it?\nA. Yes\nB. No\nAnswer: ", ["Yes", "No"], "Is it?", ["Yes", "No"]),
        ("Which?\n\nA. Heat\nB. Big\nAnswer: ", ["A", "B"], "Which?", ["Heat", "Big"]),
        (
            "A. Smith met B. Jones.\nQ: Who?\nA:",
            ["Ann", "Bob"],
            "A. Smith met B. Jones.\nQ: Who?",
            ["Ann", "Bob"],
        ),
        (
            "Which?\nA. One\nB. Two\nC. Three\nAnswer:",
            ["x", "y"],
            "Which?\nA. One\nB. Two\nC. Three",
            ["x", "y"],
        ),
    ],
)
def test_options_are_taken_out_of_the_prompt(inputs, targets, question, options):
    row = {"inputs": inputs, "multiple_choice_targets": targets, "multiple_choice_scores": [0, 1]}
    assert plain_question(row) == {"question": question, "options": options, "gold": 1}


def test_bigbench_keeps_the_rows_with_one_right_choice(tmp_path):
    none = BIGBENCH | {"multiple_choice_targets": [], "multiple_choice_scores": []}
    both = BIGBENCH | {"multiple_choice_scores": [1, 1]}
    write_jsonl(tmp_path / "bigbench" / "test.jsonl", [none, BIGBENCH, both])
    task = load_task(tmp_path, "bigbench_choice", data_folder="bigbench", answer="letters", num_fewshot=0)
    (document,) = task.task_docs
    assert task.doc_to_text(document) == "Q: Is ice cold?\nA. Yes\nB. No\nAnswer:"
    assert gold_choice(task, document) == 0


def test_knowref_asks_for_the_pronoun(tmp_path):
    write_jsonl(tmp_path / "knowref" / "test.jsonl", [KNOWREF])
    task = load_task(tmp_path, "knowref", answer="letters", num_fewshot=0)
    (document,) = task.task_docs
    assert task.doc_to_text(document) == (
        "Ann met Eve when [she] left.\nQuestion: Who is meant by the word in brackets?\nA. Ann\nB. Eve\nAnswer:"
    )
    assert gold_choice(task, document) == 1
    plain = load_task(tmp_path, "knowref", num_fewshot=0)
    assert plain.doc_to_choice(plain.task_docs[0]) == ["Ann", "Eve"]


def test_without_files_it_says_which():
    with pytest.raises(TaskError, match=r"data_dir=<folder> with bigbench/test.jsonl"):
        load_task(None, "bigbench_choice", num_fewshot=0)
