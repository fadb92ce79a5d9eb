"""lm-eval's tasks of the toy world.

Broken by: a task that lm-eval does not load offline, another filter or version of a task, a right
answer that is scored as wrong or the other way round, a prompt without the form of the corpus.
"""

from pathlib import Path
from typing import Any

import pytest

import moe_lab.tasks.toy
from moe_lab.tasks.lm_eval_versions.metrics import output_filters
from moe_lab.tasks.toy.world import WORLD_VERSION
from tests.support.scoring import scores_of

NAMES = [
    "toy_math",
    "toy_choice",
    "toy_text",
    "toy_cloze",
    "toy_rules",
    "toy_rules_max",
    "toy_subtract",
]


@pytest.fixture(scope="module")
def tasks() -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    folder = Path(moe_lab.tasks.toy.__file__).parent
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return manager.load(NAMES)["tasks"]


def test_every_task_loads_with_its_version_and_the_one_filter_none(tasks):
    assert set(tasks) == set(NAMES)
    for task in tasks.values():
        assert task.VERSION == WORLD_VERSION
        assert [output_filter.name for output_filter in output_filters(task)] == ["none"]
        assert " at 0x" not in str(task.dump_config()), "results.json has no address of a function"


RIGHT_AND_WRONG_ANSWERS = {
    "toy_math": (
        ["5 + 44 = 49\n#### 49", "#### 49\n"],
        ["5 + 44 = 49", "#### 50", "#### 4", "#### 490", ""],
    ),
    "toy_subtract": (
        [" 58 - 23 = 35", " 23 - 58 = 35\n"],
        [" 58 - 23 = 36", " 58 - 23 = 3", " 35", ""],
    ),
}
"""The first right answer is the document's."""


@pytest.mark.parametrize("name", RIGHT_AND_WRONG_ANSWERS)
def test_the_number_at_the_end_is_compared(tasks, name):
    right_answers, wrong_answers = RIGHT_AND_WRONG_ANSWERS[name]
    document = {"question": "", "answer": right_answers[0].strip()}
    for answer in right_answers:
        assert exact_match(tasks[name], document, answer) == 1, answer
    for answer in wrong_answers:
        assert exact_match(tasks[name], document, answer) == 0, answer


def exact_match(task: Any, document: dict[str, str], answer: str) -> float:
    """The task's score of an answer of the model."""
    return scores_of(task, document, answer)["exact_match"]


def test_prompts_have_the_form_of_the_corpus(tasks):
    problem = tasks["toy_math"].test_docs()[0]
    assert tasks["toy_math"].doc_to_text(problem) == f"Question: {problem['question']}\nAnswer:"

    rule = tasks["toy_rules"].test_docs()[0]
    assert rule["question"].endswith(" =")
    assert tasks["toy_rules"].doc_to_text(rule) == rule["question"]

    question = tasks["toy_choice"].test_docs()[0]
    assert tasks["toy_choice"].doc_to_text(question) == f"Question: {question['question']}\nAnswer:"
    assert tasks["toy_choice"].doc_to_choice(question) == question["choices"]
    assert tasks["toy_choice"].doc_to_target(question) == question["answer"]
