"""The reference tasks' own data. Broken by: an option that is shown twice or lost, a right answer that is another
option's, a file whose absence is not told.
"""

from __future__ import annotations

import pytest

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import TaskError
from moe_lab.tasks.documents import gold_choice
from moe_lab.tasks.loading import load_tasks
from moe_lab.tasks.references.local import plain_question
from tests.support.documents import BIGBENCH, KNOWREF
from tests.support.runs import write_jsonl


def load(folder, name, **keys):
    task = TaskConfig(name=name, **keys)
    return load_tasks(Config(task=task, data_dir=folder and str(folder), num_fewshot=0))["tasks"][name]


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
    task = load(tmp_path, "bigbench_choice", data_folder="bigbench", answer="letters")
    (document,) = task.task_docs
    assert task.doc_to_text(document) == "Q: Is ice cold?\nA. Yes\nB. No\nAnswer:"
    assert gold_choice(task, document) == 0


def test_knowref_asks_for_the_pronoun(tmp_path):
    write_jsonl(tmp_path / "knowref" / "test.jsonl", [KNOWREF])
    task = load(tmp_path, "knowref", answer="letters")
    (document,) = task.task_docs
    assert task.doc_to_text(document) == (
        "Ann met Eve when [she] left.\nQuestion: Who is meant by the word in brackets?\nA. Ann\nB. Eve\nAnswer:"
    )
    assert gold_choice(task, document) == 1
    plain = load(tmp_path, "knowref")
    assert plain.doc_to_choice(plain.task_docs[0]) == ["Ann", "Eve"]


@pytest.mark.parametrize("name", ["knowref", "bigbench_choice"])
def test_without_files_they_say_which(name):
    with pytest.raises(TaskError, match=rf"data_dir=<folder> with {name.removesuffix('_choice')}/test.jsonl"):
        load(None, name)
