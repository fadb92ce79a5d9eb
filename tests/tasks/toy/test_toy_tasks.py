"""Breaks when lm-eval does not load the tasks offline, their one filter is renamed, or a version is left."""

from pathlib import Path

import pytest

import moe_lab.tasks.toy
from moe_lab.tasks.toy.world import WORLD_VERSION

NAMES = ("toy_math", "toy_choice", "toy_text", "toy_cloze", "toy_rules", "toy_rules_max", "toy_subtract")


@pytest.fixture(scope="module")
def tasks():
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(Path(moe_lab.tasks.toy.__file__).parent), include_defaults=False)
    return manager.load(list(NAMES))["tasks"]


def test_every_task_loads_with_its_version_and_the_one_filter_none(tasks):
    assert set(tasks) == set(NAMES)
    for task in tasks.values():
        assert task.VERSION == WORLD_VERSION
        assert [each.name for each in task._filters] == ["none"]
        assert " at 0x" not in str(task.dump_config()), "results.json has no address of a function"


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("5 + 44 = 49\n#### 49", 1),
        ("#### 49\n", 1),
        ("5 + 44 = 49", 0),
        ("#### 50", 0),
        ("#### 4", 0),
        ("#### 490", 0),
        ("", 0),
    ],
)
def test_toy_math_compares_the_number_after_the_marks(tasks, answer, score):
    task = tasks["toy_math"]
    document = next(doc for doc in task.test_docs() if doc["answer"].endswith("#### 49"))
    assert scored(task, document, answer) == score


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (" 58 - 23 = 35", 1),
        (" 23 - 58 = 35\n", 1),
        (" 58 - 23 = 36", 0),
        (" 58 - 23 = 3", 0),
        (" 35", 0),
        ("", 0),
    ],
)
def test_toy_subtract_compares_the_number_at_the_end(tasks, answer, score):
    assert scored(tasks["toy_subtract"], {"question": "", "answer": "58 - 23 = 35"}, answer) == score


def scored(task, document, answer: str) -> float:
    """The task's exact match for an answer of the model."""
    instances = task.construct_requests(doc=document, ctx="", metadata=(task.config.task, 0, 1))
    instance = instances[0] if isinstance(instances, list) else instances
    task._instances = [instance]
    instance.resps = [answer]
    task.apply_filters()
    return task.process_results(document, [instance.filtered_resps["none"]])["exact_match"]


def test_prompts_have_the_form_of_the_corpus(tasks):
    problem, question = tasks["toy_math"].test_docs()[0], tasks["toy_choice"].test_docs()[0]
    assert tasks["toy_math"].doc_to_text(problem) == f"Question: {problem['question']}\nAnswer:"
    rule = tasks["toy_rules"].test_docs()[0]
    assert rule["question"].endswith(" =") and tasks["toy_rules"].doc_to_text(rule) == rule["question"]
    assert tasks["toy_choice"].doc_to_text(question) == f"Question: {question['question']}\nAnswer:"
    assert tasks["toy_choice"].doc_to_choice(question) == question["choices"]
    assert tasks["toy_choice"].doc_to_target(question) == question["answer"]
