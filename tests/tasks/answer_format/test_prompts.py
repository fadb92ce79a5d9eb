"""Breaks if a question, its options, their names or the right one are not those of the data set's row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.tasks.loading import load_tasks
from tests.support.documents import HELLASWAG, OPENBOOKQA, SOCIAL_IQA
from tests.support.runs import choices, write_jsonl

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
    "social_iqa_answer_format": (
        "social_i_qa",
        "validation",
        SOCIAL_IQA,
        "Please choose the correct answer to the question: Ann lost her keys. What will Ann do next?\n\n"
        "Answer1: sleep Answer2: search Answer3: sing\n\n"
        "Answer format: answer1/answer2/answer3\n\nthe correct answer is",
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
def test_the_prompt_and_the_names_to_choose_from(name: str, tmp_path: Path) -> None:
    folder, split, row, prompt, gold = CASES[name]
    write_jsonl(tmp_path / folder / f"{split}.jsonl", [row])
    one = TaskConfig(name=name, data_folder=folder)
    task: Any = load_tasks(Config(task=one, data_dir=str(tmp_path)))["tasks"][name]
    task.build_all_requests()
    asked = [instance.args for instance in task.instances]
    assert {context for context, _ in asked} == {prompt}
    kind = "ending" if name.startswith("hellaswag") else "answer"
    assert [answer for _, answer in asked] == [f" {kind}{number}" for number in range(1, len(asked) + 1)]
    assert task.doc_to_target(task.task_docs[0]) == gold


def test_examples_end_with_their_answer(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "openbookqa" / "test.jsonl", [OPENBOOKQA])
    write_jsonl(tmp_path / "openbookqa" / "train.jsonl", [OPENBOOKQA | {"question_stem": "Fire is"}])
    one = TaskConfig(name="openbookqa_answer_format", data_folder="openbookqa")
    task: Any = load_tasks(Config(task=one, data_dir=str(tmp_path), num_fewshot=1))["tasks"][one.name]
    task.build_all_requests()
    assert "Fire is" in task.instances[0].args[0]
    assert "the correct answer is answer2\n\nPlease choose" in task.instances[0].args[0]
