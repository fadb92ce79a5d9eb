"""Breaks if a function of this package's tasks returns something else under the same
version number in run ids.

Where one changes on purpose: raise its number (`versioned`), say so in the CHANGELOG, and write
what it returns now with `python -m tests.tasks.test_versioned_functions`.
"""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import TaskError
from moe_lab.results.code import VERSION, function_identity, version_of
from moe_lab.results.identity import task_settings
from moe_lab.tasks import answer_numbers, judges, letters, several_answers, task_functions
from moe_lab.tasks.loading import load_tasks
from moe_lab.tasks.sandbox import programs, replies
from moe_lab.tasks.task_index import OWN_TASKS
from moe_lab.tasks.task_sources import named_functions
from tests.support.documents import OPENBOOKQA, PROBLEMS
from tests.support.runs import write_jsonl

KEPT = Path(__file__).with_suffix(".json")
"""{"name number": what the function returns for its inputs below}"""
NUMBERS = [
    "She has 3 + 4 = 7 apples.\n#### 7",
    "#### 1,007 apples",
    "He pays $12.50 or 13.",
    "Each gets 2/3.",
    "Each gets 1 2/3.",
    "9{,}500",
    "\N{MINUS SIGN}4 degrees",
    r"\frac{3}{4} of it",
    "born 5/12/2020",
    "1e-3",
    "x2 = .5",
    "none",
]
GOLDS = ["7", 7, "1,007", "0.6666666666666666", "-4", "0.75", 22090603]
QUESTION = {
    "inputs": "Q: Which is wet?\nA. Fire\nB. Rain\nAnswer: ",
    "multiple_choice_targets": ["A", "B"],
    "multiple_choice_scores": [0, 1],
}
QUESTIONS = [
    QUESTION,
    QUESTION | {"multiple_choice_scores": [1, 1]},
    QUESTION
    | {
        "inputs": "Who won? A:",
        "multiple_choice_targets": ["he", "she"],
        "multiple_choice_scores": [1, 0],
    },
]
PROBLEM = PROBLEMS[1]
BODY = "    return gcd(a, b) == 1\n"
FUNCTION = f"def coprime(a: int, b: int) -> bool:\n{BODY}"
REPLIES = [
    BODY,
    f"```python\n{FUNCTION}```\nDone.",
    f"Sure!\n~~~\n{BODY}~~~",
    f"```python\nfrom __future__ import annotations\n{FUNCTION}\nprint(coprime(4,",
    "```python\ndef coprime(a: int, b: int) -> bool:\n    ...\n```\nIn full:\n```python\n"
    + FUNCTION
    + "```",
    "No.",
]


def lettered() -> list[Any]:
    """The rows of three kinds of tasks: choices in a column, a fixed place of the right
    choice, a blank in the text."""
    from datasets import Dataset

    columns = {"process_docs": None, "doc_to_text": "{{question}}", "doc_to_choice": "{{options}}"}
    rows = [
        {"question": f"Which {i}?", "options": ["fire", "rain", f"sand {i}"], "right": i % 3}
        for i in range(4)
    ]
    tasks = [columns | {"doc_to_target": "right"}, columns | {"doc_to_target": 0}]
    blank = {
        "process_docs": None,
        "doc_to_text": 1,
        "doc_to_target": "won.",
        "doc_to_choice": ["So Ann", "So Mark"],
    }
    rows_by_task = [
        letters._add_columns(task_columns, Dataset.from_list(rows)).to_list()
        for task_columns in tasks
    ]
    return [*rows_by_task, letters._add_columns(blank, Dataset.from_list(rows[:1])).to_list()]


def checked(gold: Any) -> Any:
    from datasets import Dataset

    try:
        return answer_numbers.check_golds(
            Dataset.from_list([{"question": "q", "answer": gold}])
        ).to_list()
    except TaskError:
        return "refused"


def executed(function: Callable[[], Any]) -> list[Any]:
    """The programs that a function executes, and its value where the first of two passes."""
    run: list[str] = []

    def run_programs(sources: list[str]) -> list[str]:
        run.extend(sources)
        return [
            programs.PASSED if i % 2 == 0 else "failed: AssertionError" for i in range(len(sources))
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "run_programs", run_programs)
        return [function(), run]


def judged() -> list[Any]:
    verdicts = [{"toy": {"scores": {"harm": 0.25}}, "reward": {"failed": "too long"}}]

    def judge(exchanges: Any) -> Any:
        return [{"toy": list(exchange)} for exchange in exchanges]

    with judges.judged_by(judge):
        answers = judges.judge_answers([["No.", "Yes."]], [{"instruction": "How?"}])
    return [answers, judges.score({}, verdicts)]


def questions() -> Any:
    from datasets import Dataset

    return task_functions.plain_questions(Dataset.from_list(QUESTIONS)).to_list()


DOCUMENTS_OF_REPLIES = [PROBLEM] * len(REPLIES)
ANSWERS = [[reply] for reply in REPLIES]
CALLS: list[tuple[Callable, Callable[[], Any]]] = [
    (
        answer_numbers.vote,
        lambda: answer_numbers.vote(
            [["29", "29.0", "30", "29.0"], ["", "2", "3"], ["0.667", "2/3", "1"]], None
        ),
    ),
    (
        several_answers.keep_answers,
        lambda: several_answers.keep_answers(iter([("a", "b"), ("c", "d")]), None),
    ),
    (answer_numbers.extract_answers, lambda: answer_numbers.extract_answers([NUMBERS], None)),
    (
        answer_numbers.score_number,
        lambda: [
            [
                answer_numbers.score_number({"answer": gold}, [answer])
                for answer in ("7", "2/3", "0.667", "-4", "1007.0")
            ]
            for gold in GOLDS
        ],
    ),
    (
        answer_numbers.check_golds,
        lambda: [checked(gold) for gold in ("12", "1,500", "2/3", "50%", "")],
    ),
    (task_functions.plain_questions, questions),
    (judges.judge_answers, lambda: judged()[0]),
    (judges.score, lambda: judged()[1]),
    (letters._add_columns, lettered),
    (
        programs.run_tests,
        lambda: executed(lambda: programs.run_tests([[BODY, "    return 1\n"]], [PROBLEM])),
    ),
    (
        programs.score,
        lambda: programs.score(
            PROBLEM, [["passed", "failed: AssertionError", "passed", "timed out: waiting"]]
        ),
    ),
    (
        replies.run_cut,
        lambda: executed(
            lambda: replies.run_cut(["\ndef", "\nprint"], ANSWERS, DOCUMENTS_OF_REPLIES)
        ),
    ),
    (
        replies.run_extracted,
        lambda: executed(lambda: replies.run_extracted(ANSWERS, DOCUMENTS_OF_REPLIES)),
    ),
]


def label(function: Callable) -> str:
    name, number = getattr(function, VERSION)
    return f"{name} {number}"


def returned() -> dict[str, Any]:
    return {label(function): json.loads(json.dumps(call())) for function, call in CALLS}


@pytest.mark.parametrize(
    ("function", "call"), CALLS, ids=[label(function) for function, _ in CALLS]
)
def test_a_function_returns_what_its_version_number_stands_for(function, call):
    stored_values = json.loads(KEPT.read_text(encoding="utf-8"))
    assert label(function) in stored_values, (
        "its number was raised: write what it returns (see the head of this file)"
    )
    assert json.loads(json.dumps(call())) == stored_values[label(function)], (
        "raise its number: moe_lab/results/code.py"
    )


def test_the_names_are_unique():
    assert len({getattr(function, VERSION)[0] for function, _ in CALLS}) == len(CALLS)


@pytest.mark.parametrize("file", sorted(OWN_TASKS.rglob("*.yaml")), ids=lambda file: str(file.stem))
def test_functions_that_a_yaml_of_the_package_names_are_versioned_and_kept_here(file):
    """Without a number, the package's syntax trees would enter the ids of a function's runs."""
    kept_names = {getattr(function, VERSION)[0] for function, _ in CALLS}
    for named in named_functions(file):
        if getattr(named.function, "__module__", "").startswith("moe_lab"):
            name = f"{named.function.__module__}.{named.function.__qualname__}"
            version = version_of(named.function)
            assert version is not None, f"{name}: mark it with @versioned(<name>, 1)"
            assert version[0] in kept_names, f"{name}: add a call of it to CALLS"


def syntax_trees(value: Any) -> list[str]:
    """The functions among hashed settings whose code counts: [name, digest]."""
    if isinstance(value, dict):
        return syntax_trees(list(value.values()))
    if not isinstance(value, list):
        return []
    if len(value) == 2 and re.fullmatch("[0-9a-f]{64}", str(value[1])):
        return [value[0]]
    names = []
    for item in value:
        names += syntax_trees(item)
    return names


@pytest.mark.parametrize(
    ("name", "rows", "keys"),
    [
        ("addsub", [{"question": "1 + 1?", "answer": "2"}], {}),
        ("addsub", [{"question": "1 + 1?", "answer": "2"}], {"self_consistency": 3}),
        ("bigbench_choice", [QUESTION], {}),
        ("cona", [{"instruction": "How?"}], {}),
        ("humaneval", PROBLEMS, {}),
        ("openbookqa", [OPENBOOKQA], {"answer": "letters"}),
    ],
)
def test_no_syntax_tree_of_this_package_is_in_a_run_id(tmp_path, name, rows, keys):
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / name / f"{split}.jsonl", rows)
    for in_chat in (False, True):
        task = TaskConfig(name=name, data_folder=name, **keys)
        config = Config(
            task=task,
            data_dir=str(tmp_path),
            apply_chat_template=in_chat,
            gen_kwargs={"temperature": 0.7},
        )
        for loaded_task in load_tasks(config)["tasks"].values():
            assert syntax_trees(task_settings(loaded_task)) == []


WRAPPED = """
from functools import wraps
from moe_lab.tasks.answer_numbers import score_number as own

@wraps(own)
def score_number(document, results):
    return {"exact_match": SCORE}
"""
YAML = """
task: wrapped
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
process_results: !function utils.score_number
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


def test_a_function_of_a_user_that_wraps_one_of_this_package_counts_by_its_code(tmp_path):
    """`functools.wraps` copies the name and the version number."""
    write_jsonl(tmp_path / "rows.jsonl", [{"question": "1 + 1?", "answer": "2"}])
    (tmp_path / "wrapped.yaml").write_text(YAML.replace("FILE", str(tmp_path / "rows.jsonl")))
    settings = []
    for score in ("0.0", "1.0"):
        (tmp_path / "utils.py").write_text(WRAPPED.replace("SCORE", score))
        task = TaskConfig(name="wrapped", include_path=str(tmp_path))
        settings.append(task_settings(load_tasks(Config(task=task))["tasks"]["wrapped"]))
    assert settings[0] != settings[1]


def test_the_code_of_a_user_stays_a_syntax_tree():
    [name, digest] = function_identity(lettered)
    assert name == "lettered"
    assert len(str(digest)) == 64


@pytest.mark.parametrize(("function", "name"), [(len, "len"), (math.floor, "floor")])
def test_a_function_without_a_python_file_counts_by_its_name(function, name):
    """One of a module without a file, one of a compiled module."""
    assert function_identity(function) == [name, None]


if __name__ == "__main__":
    KEPT.write_text(json.dumps(returned(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
