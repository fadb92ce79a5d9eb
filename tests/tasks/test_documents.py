"""Breaks if a limit's documents depend on anything but task, limit and sample_seed,
or if a document is both tuned on and tested.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import TaskError
from moe_lab.tasks.document_hashes import document_hashes, documents_digest
from moe_lab.tasks.documents import select_documents
from moe_lab.tasks.holdout import Holdout
from moe_lab.tasks.loading import load_tasks
from tests.support.documents import HELLASWAG, PROBLEMS
from tests.support.runs import choices, small_data, sums, worked_sums, write_jsonl


class FakeTask(SimpleNamespace):
    """Compared as an object, which lm-eval's tasks are, too."""

    __hash__ = object.__hash__


def tasks(**sizes: int) -> Any:
    made = {
        name: SimpleNamespace(task_name=name, task_docs=list(range(size)))
        for name, size in sizes.items()
    }
    return {"tasks": made}


def chosen(count: int, **keys: Any) -> list[int]:
    return select_documents(Config(**keys), tasks(gsm8k=count))["gsm8k"]


def test_a_smaller_limit_is_contained_in_a_larger_one_and_chooses_what_earlier_releases_chose():
    small = chosen(1319, limit=50)
    large = chosen(1319, limit=100)
    assert len(small) == 50
    assert len(large) == 100
    assert set(small) < set(large)
    assert small == sorted(small)
    assert small != list(range(50))
    assert chosen(100, limit=5) == [6, 9, 28, 38, 90]


def test_only_task_and_sample_seed_decide():
    config = Config(limit=20)
    selected_of_both = select_documents(config, tasks(gsm8k=500, svamp=500))
    assert selected_of_both["gsm8k"] != selected_of_both["svamp"]
    other_config = replace(config, seed=7, fewshot_seed=3, num_fewshot=2)
    assert select_documents(other_config, tasks(gsm8k=500))["gsm8k"] == selected_of_both["gsm8k"]
    assert (
        select_documents(replace(config, sample_seed=1), tasks(gsm8k=500))["gsm8k"]
        != selected_of_both["gsm8k"]
    )


@pytest.mark.parametrize(
    ("limit", "count"), [(0.1, 10), (0.001, 1), (1.0, 1), (100, 100), (1000, 100)]
)
def test_fractions_and_counts(limit, count):
    assert len(chosen(100, limit=limit)) == count


def test_samples_are_unique_and_sorted_and_without_a_limit_all_documents():
    assert chosen(7) == list(range(7))
    assert chosen(10, samples=[5, 0, 5, 9]) == [0, 5, 9]
    with pytest.raises(TaskError, match=r"samples=10 does not exist: gsm8k has documents 0 to 9"):
        chosen(10, samples=[3, 10])


def test_digest_follows_content():
    def digest(documents: list[dict[str, str]], pool: list[dict[str, str]], shots: int = 0) -> str:
        task = FakeTask(
            task_docs=documents,
            sampler=SimpleNamespace(df=pool),
            get_config={"num_fewshot": shots}.get,
        )
        tasks: Any = {"tasks": {"t": task}}
        return documents_digest(tasks, {"t": [0, 2]})["t"]

    documents = [{"q": "a"}, {"q": "b"}, {"q": "c"}]
    first = digest(documents, [{"q": "x"}])
    assert digest([{"q": "a"}, {"q": "OTHER"}, {"q": "c"}], [{"q": "x"}]) == first, "not selected"
    assert digest([{"q": "a"}, {"q": "b"}, {"q": "C"}], [{"q": "x"}]) != first
    assert digest(documents, [{"q": "y"}]) == first, "no few-shot examples"
    assert digest(documents, [{"q": "y"}], shots=1) != digest(documents, [{"q": "x"}], shots=1)


# Tuning documents

HOLDOUT = Holdout(num_samples=4, seed=1234)


def config(data: Path | None, task: str, **keys) -> Config:
    return Config(task=TaskConfig(name=task), data_dir=data and str(data), offline=True, **keys)


def view(config: Config, holdout: Holdout = HOLDOUT):
    return next(iter(load_tasks(config, holdout)["tasks"].values()))


def hashes(task) -> set[str]:
    return set().union(*document_hashes(task))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "arc_easy" / "validation.jsonl", choices(9, start=50))
    small_data(tmp_path)
    write_jsonl(tmp_path / "gsm8k" / "train.jsonl", worked_sums(20, start=5))
    return tmp_path


def test_a_validation_split_that_is_not_evaluated_comes_first(data):
    task = view(config(data, "arc_easy"))
    assert task.config.custom_dataset.source == "validation"
    assert len(task.task_docs) == 4
    for document in task.task_docs:
        assert int(document["id"][1:]) in range(50, 59)


def test_then_the_train_split_if_there_is_one_with_examples_from_its_other_rows(data):
    task = view(config(data, "gsm8k", num_fewshot=5))
    assert task.config.custom_dataset.source == "train"
    tuned = {document["question"] for document in task.task_docs}
    examples = {document["question"] for document in task.sampler.df}
    assert len(tuned) == 4
    assert len(examples) == 16
    assert not tuned & examples
    (data / "gsm8k" / "train.jsonl").unlink()
    assert view(config(data, "gsm8k", num_fewshot=0)).config.custom_dataset.source == "test"


def test_else_a_sample_of_the_evaluated_split_which_the_test_leaves_out(data):
    """Few-shot examples come from the rows that are left, too."""
    tested_config = config(data, "addsub", num_fewshot=2)
    task = view(tested_config)
    assert task.config.custom_dataset.source == "test"
    full = load_tasks(tested_config)
    remaining = select_documents(tested_config, full, frozenset(hashes(task)))["addsub"]
    assert len(remaining) == 8
    tested = [document_hashes(full["tasks"]["addsub"])[number] for number in remaining]
    assert len(tested) == 8
    assert not hashes(task) & set().union(*tested)
    assert sorted(task.config.custom_dataset.numbers + remaining) == list(range(12))
    tuned = {document["question"] for document in task.task_docs}
    assert not tuned & {document["question"] for document in task.sampler.df}
    assert len(task.sampler.df) == 8


def test_repeated_documents_are_left_out_of_the_test_too(data):
    rows = sums(6)
    write_jsonl(data / "addsub" / "test.jsonl", [*rows, *rows])
    tested_config = config(data, "addsub")
    task = view(tested_config)
    tuned = {document["question"] for document in task.task_docs}
    full = load_tasks(tested_config)
    remaining = select_documents(tested_config, full, frozenset(hashes(task)))["addsub"]
    documents = full["tasks"]["addsub"].task_docs
    assert len(remaining) == 12 - 2 * len(tuned)
    assert not tuned & {documents[number]["question"] for number in remaining}


def test_a_smaller_split_is_used_whole_and_no_test_left_is_an_error(data):
    assert len(view(config(data, "arc_easy"), Holdout(num_samples=300, seed=0)).task_docs) == 9
    tested_config = config(data, "addsub")
    whole = hashes(view(tested_config, Holdout(num_samples=300, seed=0)))
    with pytest.raises(TaskError, match="All 12 documents of addsub were tuned on"):
        select_documents(tested_config, load_tasks(tested_config), frozenset(whole))


def test_the_choice_depends_on_the_seed_only(data):
    numbers = [
        view(config(data, "gsm8k", num_fewshot=0, limit=limit), Holdout(num_samples=4, seed=seed))
        for limit, seed in ((None, 1), (2, 1), (None, 2))
    ]
    first, repeated_numbers, other_numbers = (
        task.config.custom_dataset.numbers for task in numbers
    )
    assert first == repeated_numbers != other_numbers


@pytest.mark.parametrize("name", ["toy_math", "toy_choice", "toy_text"])
def test_the_toy_tasks_are_tuned_on_their_validation_split(name):
    tested_config = config(None, name)
    task = view(tested_config)
    full = load_tasks(tested_config)["tasks"][name]
    assert task.config.custom_dataset.source == "validation"
    assert not hashes(task) & hashes(full)


def test_a_question_is_the_same_whatever_its_row_is_called(data):
    """Another row number, identifier or gold answer makes no other question; other choices do."""
    rows = choices(3)
    other_choices = {"text": ["red", "green", "pink"], "label": ["A", "B", "C"]}
    rows += [
        dict(rows[0], id="other"),
        dict(rows[0], answerKey="B"),
        dict(rows[0], choices=other_choices),
    ]
    write_jsonl(data / "arc_easy" / "test.jsonl", rows)
    first, *_, same_hash, gold, other_hash = document_hashes(
        load_tasks(config(data, "arc_easy"))["tasks"]["arc_easy"]
    )
    assert first & same_hash
    assert first & gold
    assert not first & other_hash


def test_other_choices_are_another_question_where_they_are_a_column(tmp_path):
    other_columns = HELLASWAG | {"endings": [f"{ending} Again." for ending in HELLASWAG["endings"]]}
    write_jsonl(tmp_path / "hellaswag" / "validation.jsonl", [HELLASWAG, other_columns])
    first, second = document_hashes(load_tasks(config(tmp_path, "hellaswag"))["tasks"]["hellaswag"])
    assert not first & second


@pytest.mark.parametrize(
    "tuned, tested", [("humaneval", "humaneval_plus"), ("hellaswag_answer_format", "hellaswag")]
)
def test_a_profile_keeps_its_documents_out_of_other_tasks_of_the_data(tmp_path, tuned, tested):
    code = [PROBLEMS[0] | {"task_id": f"own/{i}", "prompt": f"def f{i}(x):\n"} for i in range(6)]
    plus = [row | {"test": "def check(f):\n    assert f(1) == 2\n"} for row in code]
    plus[0]["prompt"] = "def f0(x) -> int:\n"  # HumanEval+ has mended a prompt
    write_jsonl(tmp_path / "humaneval" / "test.jsonl", code)
    write_jsonl(tmp_path / "humaneval_plus" / "test.jsonl", plus)
    pots = [HELLASWAG | {"ctx_a": f"Pot {i} boils."} for i in range(6)]
    write_jsonl(tmp_path / "hellaswag" / "validation.jsonl", pots)

    def config_of(name: str) -> Config:
        base_config = config(tmp_path, name)
        base_config.task.data_folder = name.removesuffix("_answer_format")
        return base_config

    task = view(config_of(tuned))
    remaining = select_documents(
        config_of(tested), load_tasks(config_of(tested)), frozenset(hashes(task))
    )[tested]
    assert sorted(remaining + task.config.custom_dataset.numbers) == list(range(6))
