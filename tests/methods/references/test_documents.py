"""Which documents references come from. Broken by: a test document among them, another split or size than Table 7's, a
choice that moves with limit=, a missing file or split that is not told with the way out.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import ConfigError
from moe_lab.methods.references.documents import TABLE_7, Source, reference_documents, reference_sources
from tests.support.documents import COPA, KNOWREF, OPENBOOKQA, SCIQ
from tests.support.runs import choices, write_jsonl

WINOGRANDE = {
    "sentence": "Ann thanked Eve since _ helped.",
    "option1": "Ann",
    "option2": "Eve",
    "answer": "2",
}


def settings(reference: Any = None, size: int | None = None) -> Any:
    return SimpleNamespace(reference=reference, reference_size=size)


def config(data: Any, task: str, **keys: Any) -> Config:
    return Config(task=TaskConfig(name=task, answer="letters"), data_dir=data and str(data), **keys)


def numbered(row: dict, column: str, count: int) -> list[dict]:
    return [row | {column: f"{row[column]} ({i})"} for i in range(count)]


@pytest.fixture
def data(tmp_path):
    """Some of Table 7's tasks, each with the splits that data_dir usually has."""
    write_jsonl(tmp_path / "arc_easy" / "test.jsonl", choices(9))
    write_jsonl(tmp_path / "arc_easy" / "train.jsonl", choices(6, start=7))  # two of them are test documents
    write_jsonl(tmp_path / "winogrande" / "validation.jsonl", [WINOGRANDE])
    write_jsonl(tmp_path / "openbookqa" / "train.jsonl", numbered(OPENBOOKQA, "question_stem", 8))
    write_jsonl(tmp_path / "openbookqa" / "test.jsonl", numbered(OPENBOOKQA, "question_stem", 3))
    write_jsonl(tmp_path / "sciq" / "validation.jsonl", numbered(SCIQ, "question", 5))
    write_jsonl(tmp_path / "knowref" / "test.jsonl", numbered(KNOWREF, "sentence", 4))
    return tmp_path


def asked(found) -> dict[str, int]:
    return {name: len(numbers) for name, numbers in found.samples.items()}


@pytest.mark.slow
def test_table_7_takes_train_splits_where_there_are_some(data):
    found = reference_documents(config(data, "arc_easy"), settings())
    assert found.label == "Table 7"
    assert asked(found) == {"openbookqa:train": 8, "sciq:validation": 5}
    book, sciq = found.sources
    assert (book["wanted"], book["documents"], book["asked"]) == (2000, 8, 8)
    assert (sciq["wanted"], sciq["documents"], sciq["asked"]) == (2000, 5, 5)
    assert asked(reference_documents(config(data, "winogrande"), settings())) == {"knowref:test": 4}


def test_table_7_is_the_papers():
    paper = {task: {"CommonsenseQA": 6000, "Social-IQA": 6000} for task in ("hellaswag", "piqa")}
    paper |= {task: {"OpenBookQA": 2000, "SciQ": 2000} for task in ("arc_challenge", "arc_easy")}
    paper |= {"mmlu": {"BIG-bench": 8000, "SuperGLUE": 8000}, "winogrande": {"KnowRef": 2000}}
    assert {task: {source.title: source.size for source in row} for task, row in TABLE_7.items()} == paper


def test_a_size_takes_the_first_of_one_permutation(data):
    def chosen(size: int, **keys: Any) -> set[tuple[str, int]]:
        found = reference_documents(config(data, "arc_easy", **keys), settings(size=size))
        return {(name, number) for name, numbers in found.samples.items() for number in numbers}

    small, large = chosen(2), chosen(4)
    assert len(small) == 4 and len(large) == 8 and small < large, "of each source"
    assert chosen(2, limit=1, seed=5, fewshot_seed=3, num_fewshot=2) == small
    assert chosen(2, sample_seed=1) != small


def test_a_test_document_is_no_reference(data):
    found = reference_documents(config(data, "arc_easy"), settings("arc_easy"))
    assert found.label == "method.reference"
    (source,) = found.sources
    assert (source["documents"], source["dropped"], source["asked"]) == (6, 2, 4)
    ids = [found.tasks["arc_easy:train"].task_docs[i]["id"] for i in found.samples["arc_easy:train"]]
    assert ids == ["q9", "q10", "q11", "q12"]
    assert asked(reference_documents(config(data, "arc_easy", limit=1), settings("arc_easy"))) == asked(found)


def test_nothing_left_and_a_task_without_right_answers_are_refused(data):
    with pytest.raises(ConfigError, match="All documents of arc_easy:test are evaluated"):
        reference_documents(config(data, "arc_easy"), settings("arc_easy:test"))
    with pytest.raises(ConfigError, match="toy_text.* neither choices nor texts that are right or wrong"):
        reference_documents(Config(task=TaskConfig(name="toy_choice")), settings("toy_text"))


def test_another_task_uses_its_own_train_split(data):
    found = reference_documents(config(data, "openbookqa"), settings())
    assert found.label == "own train split"
    assert found.sources[0]["dropped"] == 3 and asked(found) == {"openbookqa:train": 5}


def test_without_a_train_split_the_way_out_is_named(data):
    with pytest.raises(ConfigError, match=r"sciq has no training split(.|\n)*method.reference="):
        write_jsonl(data / "sciq" / "test.jsonl", [SCIQ])
        reference_documents(config(data, "sciq"), settings())


def test_a_split_can_be_named(data):
    several = settings(["arc_easy:test", "openbookqa:test", "openbookqa:train"])
    found = reference_documents(config(data, "arc_easy"), several)
    assert asked(found) == {"arc_easy:test": 0, "openbookqa:test": 3, "openbookqa:train": 8}
    told = r"come from openbookqa:dev. Task openbookqa has no dev split in .*/openbookqa"
    with pytest.raises(ConfigError, match=told):
        reference_documents(config(data, "arc_easy"), settings("openbookqa:dev"))


def test_the_toy_worlds_near_and_far_sets():
    toy = Config(task=TaskConfig(name="toy_choice"))
    near = reference_documents(toy, settings())
    far = reference_documents(toy, settings("toy_choice:far"))
    assert asked(near) == {"toy_choice:near": 400} and asked(far) == {"toy_choice:far": 100}
    with pytest.raises(ConfigError, match="toy_choice cannot be loaded: KeyError: 'bad'"):
        reference_documents(toy, settings("toy_choice:bad"))


@pytest.mark.parametrize(("task", "own"), [("toy_rules", "plus"), ("toy_rules_max", "max")])
def test_rules_have_references_of_their_meaning_and_on_request_of_the_other(task, own):
    rules = Config(task=TaskConfig(name=task))
    assert asked(reference_documents(rules, settings())) == {f"toy_rules:{own}": 200}
    for meaning in ("plus", "max"):
        found = reference_documents(rules, settings(f"toy_rules:{meaning}"))
        assert asked(found) == {f"toy_rules:{meaning}": 200} and found.dropped == 0


def test_a_source_has_local_files_and_otherwise_the_hub(data, monkeypatch):
    """Also that no part of a source is left out: fails where the hub is not asked for what data_dir has not."""
    source = Source("some", ("copa", "boolq"), 1)
    monkeypatch.setitem(TABLE_7, "arc_easy", (source,))
    write_jsonl(data / "super_glue" / "copa" / "train.jsonl", [COPA])
    with pytest.raises(ConfigError, match=r"aps/super_glue(.|\n)*super_glue/boolq(.|\n)*method.reference="):
        reference_documents(config(data, "arc_easy"), settings())
    monkeypatch.setitem(TABLE_7, "arc_easy", (replace(source, tasks=("copa",), hub_tasks=("boolq",)),))
    found = reference_documents(config(data, "arc_easy"), settings())
    assert list(found.tasks) == ["copa:train"]
    assert found.sources[0]["data"] == [f"files in {data / 'super_glue' / 'copa'}"]


def test_generated_answers_are_right_by_the_tasks_headline_metric(data):
    found = reference_documents(Config(task=TaskConfig(name="toy_math")), settings(size=7))
    assert found.label == "own train split" and found.metrics == {"toy_math:train": "exact_match,none"}
    assert asked(found) == {"toy_math:train": 7}
    write_jsonl(data / "gsm8k" / "train.jsonl", [{"question": "1 + 1?", "answer": "#### 2"}])
    gsm8k = reference_documents(config(data, "arc_easy"), settings("gsm8k"))
    assert gsm8k.metrics == {"gsm8k:train": "exact_match,strict-match"}


def test_several_evaluated_tasks_share_their_sources():
    label, sources = reference_sources(["arc_easy", "arc_challenge", "openbookqa"], None)
    assert label == "Table 7, own train split"
    assert [source.title for source in sources] == ["OpenBookQA", "SciQ", "openbookqa, train"]
    assert reference_sources("mmlu_anatomy", None) == reference_sources("mmlu", None)
    assert reference_sources("x", "y") == ("method.reference", [Source("y", ("y",))])
    with pytest.raises(ConfigError, match="names no task"):
        reference_sources("x", [])
