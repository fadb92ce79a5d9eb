"""Tuning documents. Broken by: a document that is tuned on and tested, an example drawn from the tuned ones, a split
order other than the design's.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import TaskError
from moe_lab.methods import get_method
from moe_lab.tasks.documents import select_documents
from moe_lab.tasks.loading import load_tasks
from moe_lab.tasks.tuning_split import Holdout, document_hashes
from tests.support.runs import choices, sums, write_jsonl

HOLDOUT = Holdout(num_samples=4, seed=1234)


def config(data: Path | None, task: str, **keys) -> Config:
    return Config(
        method=get_method("base").Config(name="base"),
        task=TaskConfig(name=task),
        data_dir=None if data is None else str(data),
        offline=True,
        **keys,
    )


def view(one: Config, holdout: Holdout = HOLDOUT):
    return next(iter(load_tasks(one, holdout)["tasks"].values()))


def hashes(task) -> set[str]:
    return set().union(*document_hashes(task))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "addsub" / "test.jsonl", sums(12))
    write_jsonl(tmp_path / "arc_easy" / "test.jsonl", choices(10))
    write_jsonl(tmp_path / "arc_easy" / "validation.jsonl", choices(9, start=50))
    write_jsonl(tmp_path / "arc_easy" / "train.jsonl", choices(6, start=100))
    worked = [{"question": row["question"], "answer": f"#### {row['answer']}"} for row in sums(25)]
    write_jsonl(tmp_path / "gsm8k" / "test.jsonl", worked[:5])
    write_jsonl(tmp_path / "gsm8k" / "train.jsonl", worked[5:])
    return tmp_path


def test_a_validation_split_that_is_not_evaluated_comes_first(data):
    task = view(config(data, "arc_easy"))
    assert task.config.custom_dataset.source == "validation"
    assert len(task.task_docs) == 4
    assert all(int(document["id"][1:]) in range(50, 59) for document in task.task_docs)


def test_then_the_train_split_with_examples_from_its_other_rows(data):
    task = view(config(data, "gsm8k", num_fewshot=5))
    assert task.config.custom_dataset.source == "train"
    tuned = {document["question"] for document in task.task_docs}
    examples = {document["question"] for document in task.sampler.df}
    assert len(tuned) == 4 and len(examples) == 16 and not tuned & examples


def test_else_a_sample_of_the_evaluated_split_which_the_test_leaves_out(data):
    one = config(data, "addsub")
    task = view(one)
    assert task.config.custom_dataset.source == "test"
    full = load_tasks(one)
    left = select_documents(one, full, frozenset(hashes(task)))["addsub"]
    assert len(left) == 8
    tested = [document_hashes(full["tasks"]["addsub"])[number] for number in left]
    assert len(tested) == 8 and not hashes(task) & set().union(*tested)
    assert sorted(task.config.custom_dataset.numbers(task) + left) == list(range(12))


def test_a_train_file_that_is_not_there_is_no_train_split(data):
    (data / "gsm8k" / "train.jsonl").unlink()
    assert view(config(data, "gsm8k", num_fewshot=0)).config.custom_dataset.source == "test"


def test_repeated_documents_are_left_out_of_the_test_too(data):
    rows = sums(6)
    write_jsonl(data / "addsub" / "test.jsonl", [*rows, *rows])
    one = config(data, "addsub")
    task = view(one)
    tuned = {document["question"] for document in task.task_docs}
    full = load_tasks(one)
    left = select_documents(one, full, frozenset(hashes(task)))["addsub"]
    documents = full["tasks"]["addsub"].task_docs
    assert len(left) == 12 - 2 * len(tuned)
    assert not tuned & {documents[number]["question"] for number in left}


def test_examples_of_a_task_with_one_split_come_from_its_other_rows(data):
    task = view(config(data, "addsub", num_fewshot=2))
    tuned = {document["question"] for document in task.task_docs}
    assert not tuned & {document["question"] for document in task.sampler.df}
    assert len(task.sampler.df) == 8


def test_a_smaller_split_is_used_whole_and_no_test_left_is_an_error(data):
    assert len(view(config(data, "arc_easy"), Holdout(num_samples=300, seed=0)).task_docs) == 9
    one = config(data, "addsub")
    whole = hashes(view(one, Holdout(num_samples=300, seed=0)))
    with pytest.raises(TaskError, match="All 12 documents of addsub were tuned on"):
        select_documents(one, load_tasks(one), frozenset(whole))


def test_the_choice_depends_on_the_seed_only(data):
    numbers = [
        view(config(data, "gsm8k", num_fewshot=0, limit=limit), Holdout(num_samples=4, seed=seed))
        for limit, seed in ((None, 1), (2, 1), (None, 2))
    ]
    first, again, other = (task.config.custom_dataset.numbers(task) for task in numbers)
    assert first == again != other


@pytest.mark.parametrize("name", ["toy_math", "toy_choice", "toy_text"])
def test_the_toy_tasks_are_tuned_on_their_validation_split(name):
    one = config(None, name)
    task = view(one)
    full = load_tasks(one)["tasks"][name]
    assert task.config.custom_dataset.source == "validation"
    assert not hashes(task) & hashes(full)


def test_a_question_is_the_same_whatever_its_row_is_called(data):
    """A row number, an identifier or another gold answer make no other question; other choices do."""
    rows = choices(3)
    others = {"text": ["red", "green", "pink"], "label": ["A", "B", "C"]}
    rows += [dict(rows[0], id="other"), dict(rows[0], answerKey="B"), dict(rows[0], choices=others)]
    write_jsonl(data / "arc_easy" / "test.jsonl", rows)
    first, *_, same, gold, other = document_hashes(load_tasks(config(data, "arc_easy"))["tasks"]["arc_easy"])
    assert first & same and first & gold and not first & other


def sibling_rows() -> dict[str, list[dict]]:
    """A few rows in the columns of data sets that several tasks read."""
    endings = ["runs.", "sleeps.", "sings.", "eats."]
    hellaswag = [
        {"ind": i, "activity_label": "Dogs", "ctx_a": f"Dog {i}", "ctx_b": "then", "ctx": f"Dog {i} then"}
        | {"endings": endings, "source_id": "x", "split": "val", "split_type": "", "label": "1"}
        for i in range(6)
    ]
    code = [
        {"task_id": f"HumanEval/{i}", "prompt": f"def f{i}():\n", "entry_point": f"f{i}"}
        | {"canonical_solution": "    return 1\n", "test": "def check(f):\n    assert f() == 1\n"}
        for i in range(6)
    ]
    plus = [dict(row, test="def check(f):\n    assert f() + 1 == 2\n") for row in code]
    plus[0]["prompt"] = "def f0() -> int:\n"  # HumanEval+ has mended a prompt
    return {"hellaswag": hellaswag, "arc_easy": choices(6), "humaneval": code, "humaneval_plus": plus}


@pytest.mark.parametrize(
    "tuned, tested",
    [
        ("humaneval", "humaneval_plus"),
        ("humaneval_plus", "humaneval"),
        ("hellaswag", "hellaswag_answer_format"),
        ("hellaswag_answer_format", "hellaswag"),
        ("arc_easy", "arc_easy_answer_format"),
        ("arc_easy_answer_format", "arc_easy"),
    ],
)
def test_a_profile_keeps_its_documents_out_of_other_tasks_of_the_data(tmp_path, tuned, tested):
    for folder, rows in sibling_rows().items():
        split = "validation" if folder == "hellaswag" else "test"
        write_jsonl(tmp_path / folder / f"{split}.jsonl", rows)

    def one(name: str) -> Config:
        given = config(tmp_path, name)
        given.task.data_folder = name.removesuffix("_answer_format")
        given.task.allow_code_execution = True
        return given

    task = view(one(tuned))
    left = select_documents(one(tested), load_tasks(one(tested)), frozenset(hashes(task)))[tested]
    assert sorted(left + task.config.custom_dataset.numbers(task)) == list(range(6))
