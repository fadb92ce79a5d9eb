"""Breaks if local files are mixed with the hub, cached across changes, altered on reading, or blamed unclearly."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import lm_eval
import pytest

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import TaskError
from moe_lab.tasks.factory import has_own_files
from moe_lab.tasks.loading import load_tasks
from moe_lab.tasks.local_data import check_data_dir, shown_columns
from tests.support.runs import choices, small_data, sums, write_jsonl


def load(data: Path | None, task: str = "arc_easy", **keys: Any) -> Any:
    config = Config(task=keys.pop("task_config", TaskConfig(name=task)), data_dir=data and str(data), **keys)
    return next(iter(load_tasks(config)["tasks"].values()))


def test_only_the_needed_splits_are_read(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "arc_easy" / "test.jsonl", choices(5))
    assert [document["id"] for document in load(tmp_path).task_docs] == ["q0", "q1", "q2", "q3", "q4"]
    with pytest.raises(
        TaskError, match=r"arc_easy/train\.jsonl is missing: arc_easy needs it for its 2 few-shot"
    ):
        load(tmp_path, num_fewshot=2)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    with pytest.raises(TaskError, match=r"gsm8k/test\.jsonl is missing: gsm8k needs it for its documents"):
        load(tmp_path, "gsm8k")


def test_a_missing_file_says_what_is_there(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "arc_easy" / "test.jsonl", choices(5))
    with pytest.raises(TaskError, match=r"dev\.jsonl is missing.*\n.*arc_easy has test\.jsonl\."):
        load(tmp_path, task_config=TaskConfig(name="arc_easy", fewshot_split="dev"), num_fewshot=1)


@pytest.mark.parametrize(
    ("place", "folder", "message"),
    [
        ("none", "copa", "data_dir=.*/none: there is no such folder"),
        ("README.md", "copa", r"data_dir=.*/README\.md is a file"),
        ("arc_easy", "arc_easy", r"it has test\.jsonl itself\.\nGive the one above: data_dir={data}$"),
        ("glue/copa", "glue/copa", r"Give the one above: data_dir={data}$"),
    ],
)
def test_what_is_no_data_dir_is_said(place: str, folder: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("")
    for name in ("arc_easy", "glue/copa"):
        write_jsonl(tmp_path / name / "test.jsonl", choices(1))
    with pytest.raises(TaskError, match=message.format(data=tmp_path)):
        check_data_dir(str(tmp_path / place), folder)
    check_data_dir(str(tmp_path), folder)
    check_data_dir(str(tmp_path / "arc_easy"), ".")  # task.data_folder=.


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "q", "answer": ', r"test\.jsonl, line 3 is not JSON"),
        ("[1, 2]", r"test\.jsonl, line 3: not a JSON object"),
        ('{"question": "q"}', r"test\.jsonl, line 3: no column 'answer'"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    write_jsonl(tmp_path / "addsub" / "test.jsonl", sums(2))
    with (tmp_path / "addsub" / "test.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(TaskError, match=message):
        load(tmp_path, "addsub")


def test_a_null_that_would_stand_in_a_prompt_is_named(tmp_path: Path) -> None:
    """A question "None" would be asked and scored."""
    rows = [{"question": f"q{i}", "answer": "#### 1", "note": None} for i in range(3)]
    write_jsonl(tmp_path / "gsm8k" / "test.jsonl", rows)
    assert len(load(tmp_path, "gsm8k", num_fewshot=0).task_docs) == 3, (
        "a column that is not shown may be null"
    )
    write_jsonl(tmp_path / "gsm8k" / "test.jsonl", [*rows, {"question": None, "answer": "5", "note": ""}])
    with pytest.raises(TaskError, match=r"gsm8k/test\.jsonl, row 4: 'question' is null, but gsm8k shows it"):
        load(tmp_path, "gsm8k", num_fewshot=0)


@pytest.mark.parametrize(
    ("template", "columns"),
    [
        ("Q: {{question}}\n{{ answer.strip() }}{{x[0]}}", {"question", "answer", "x"}),
        ("{{hint if hint else ''}}{% if a %}b{% endif %}{{c|default('')}}", set()),
    ],
)
def test_columns_that_are_inserted_as_they_are(template: str, columns: set[str]) -> None:
    assert shown_columns({"doc_to_text": template, "doc_to_choice": ["{{z}}"]}) == columns
    assert not shown_columns({"doc_to_text": template, "process_docs": len})


def test_an_empty_and_a_binary_file(tmp_path: Path) -> None:
    file = tmp_path / "addsub" / "test.jsonl"
    write_jsonl(file, [])
    with pytest.raises(TaskError, match="is empty"):
        load(tmp_path, "addsub")
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match=r"cannot be read: 'utf-8' codec"):
        load(tmp_path, "addsub")


def test_wrong_columns_name_the_folder(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "gsm8k" / "test.jsonl", [{"problem": "1 + 1", "solution": "2"}])
    with pytest.raises(TaskError, match=r"gsm8k cannot use the files in .*gsm8k.*'question'"):
        load(tmp_path, "gsm8k", num_fewshot=0)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "addsub" / "test.jsonl"
    write_jsonl(file, sums(3))
    assert load(tmp_path, "addsub").task_docs[0]["answer"] == "2"
    before = file.stat()
    file.write_text(file.read_text().replace('"2"', '"9"'))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert file.stat().st_size == before.st_size
    assert load(tmp_path, "addsub").task_docs[0]["answer"] == "9"


def test_text_stays_text(tmp_path: Path) -> None:
    """`datasets`' own JSON reader turns such strings into timestamps."""
    write_jsonl(
        tmp_path / "addsub" / "test.jsonl", [{"question": "2020-01-01", "answer": "2021-05-05 10:00:00"}]
    )
    assert load(tmp_path, "addsub").task_docs[0] == {
        "question": "2020-01-01",
        "answer": "2021-05-05 10:00:00",
    }


def test_nothing_is_cached_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    load(small_data(tmp_path), "gsm8k", num_fewshot=4)
    assert not (tmp_path / "cache").exists()


def test_shared_files_are_filtered(tmp_path: Path) -> None:
    rows = [
        {"question": f"{subject} {i}", "subject": subject, "choices": ["0", "1", "2", "3"], "answer": i}
        for subject in ("anatomy", "virology")
        for i in range(3)
    ]
    write_jsonl(tmp_path / "mmlu" / "test.jsonl", rows)
    task = TaskConfig(name=["mmlu_virology", "mmlu_anatomy"], data_folder="mmlu", data_filter="subject")
    tasks = load_tasks(Config(task=task, data_dir=str(tmp_path)))["tasks"]
    assert [document["question"] for document in tasks["mmlu_virology"].task_docs] == [
        "virology 0",
        "virology 1",
        "virology 2",
    ]
    with pytest.raises(TaskError, match=r"no row with subject='astronomy'"):
        load(
            tmp_path, task_config=TaskConfig(name="mmlu_astronomy", data_folder="mmlu", data_filter="subject")
        )
    with pytest.raises(TaskError, match=r"no column 'topic'"):
        load(tmp_path, task_config=TaskConfig(name="mmlu_anatomy", data_folder="mmlu", data_filter="topic"))


def test_offline_names_the_hub_data_set_at_once() -> None:
    start = time.perf_counter()
    with pytest.raises(
        TaskError, match=r"gsm8k: The data set openai/gsm8k is not available offline(.|\n)*data_dir="
    ):
        load(None, "gsm8k")
    assert time.perf_counter() - start < 5


def test_the_hub_is_asked_only_for_what_it_has_to_deliver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("moe_lab.models.hub.check_data_set", lambda path, revision: asked.append(path))
    write_jsonl(tmp_path / "arc_easy" / "test.jsonl", choices(5))
    assert load(tmp_path).data_source == f"files in {tmp_path / 'arc_easy'}"
    assert load(None, "toy_math").data_source == "generated"
    assert asked == []
    for folder, name in ((None, "gsm8k"), (tmp_path, "gsm8k"), (tmp_path, "svamp")):
        with pytest.raises(TaskError, match=rf"not available offline(.|\n)*Or give .*{name}/<split>\.jsonl"):
            load(folder, name)
    assert asked == ["openai/gsm8k", "openai/gsm8k", "ChilleD/SVAMP"]


def test_generated_tasks_need_no_files(tmp_path: Path) -> None:
    assert len(load(tmp_path, "toy_math").task_docs) > 100


MINE = """
task: my_sums
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: exact_match}]
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskConfig:
    """A task of the user's own with two documents, beside a data_dir that has three of its name."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    own = tmp_path / "mine"
    write_jsonl(own / "sums.jsonl", sums(2, start=50))
    (own / "my_sums.yaml").write_text(MINE.replace("FILE", str(own / "sums.jsonl")))
    write_jsonl(tmp_path / "data" / "my_sums" / "test.jsonl", sums(3))
    return TaskConfig(name="my_sums", include_path=str(own))


@pytest.mark.slow
def test_a_tasks_own_files_win(tmp_path: Path, mine: TaskConfig) -> None:
    """Broken by a file in data_dir that takes the place of what the user's own YAML names."""
    for data in (None, tmp_path / "data"):
        documents = load(data, task_config=mine).task_docs
        assert [document["answer"] for document in documents] == ["52", "53"]


@pytest.mark.slow
def test_own_files_that_are_missing_are_not_sought_in_data_dir(tmp_path: Path, mine: TaskConfig) -> None:
    (tmp_path / "mine" / "sums.jsonl").unlink()
    with pytest.raises(TaskError, match="my_sums cannot use the data that its own YAML names"):
        load(tmp_path / "data", task_config=mine)


def test_what_a_packages_yaml_names_is_replaced(tmp_path: Path) -> None:
    local = {"dataset_path": "json", "dataset_kwargs": {"data_files": "a.json"}}
    remote = {"dataset_path": "json", "dataset_kwargs": {"data_files": "https://host/a.json"}}
    own = tmp_path / "a.yaml"
    assert has_own_files(own, local) and has_own_files(own, {"dataset_path": str(tmp_path)})
    assert not has_own_files(own, remote) and not has_own_files(own, {"dataset_path": "owner/name"})
    assert not has_own_files(Path(lm_eval.__file__).parent / "tasks" / "a.yaml", local)
    assert not has_own_files(own, {"custom_dataset": load_tasks}) and has_own_files(
        own, {"custom_dataset": load}
    )
