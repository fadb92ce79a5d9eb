"""Breaks if a limit's documents depend on anything but task, limit and sample_seed, or leave lm-eval's order."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from moe_lab.config.schema import Config
from moe_lab.errors import TaskError
from moe_lab.tasks.documents import documents_digest, select_documents


class FakeTask(SimpleNamespace):
    """Compared as an object, which lm-eval's tasks are, too."""

    __hash__ = object.__hash__


def tasks(**sizes: int) -> Any:
    return {"tasks": {name: SimpleNamespace(task_docs=list(range(size))) for name, size in sizes.items()}}


def chosen(count: int, **keys: Any) -> list[int]:
    return select_documents(Config(**keys), tasks(gsm8k=count))["gsm8k"]


def test_a_smaller_limit_is_contained_in_a_larger_one() -> None:
    small, large = chosen(1319, limit=50), chosen(1319, limit=100)
    assert len(small) == 50 and len(large) == 100 and set(small) < set(large)
    assert small == sorted(small)
    assert small != list(range(50))


def test_only_task_and_sample_seed_decide() -> None:
    config = Config(limit=20)
    both = select_documents(config, tasks(gsm8k=500, svamp=500))
    assert both["gsm8k"] != both["svamp"]
    assert (
        select_documents(replace(config, seed=7, fewshot_seed=3, num_fewshot=2), tasks(gsm8k=500))["gsm8k"]
        == both["gsm8k"]
    )
    assert select_documents(replace(config, sample_seed=1), tasks(gsm8k=500))["gsm8k"] != both["gsm8k"]


def test_golden_choice() -> None:
    """Stored results of earlier releases name these documents."""
    assert chosen(100, limit=5) == [6, 9, 28, 38, 90]


@pytest.mark.parametrize(("limit", "count"), [(0.1, 10), (0.001, 1), (1.0, 1), (100, 100), (1000, 100)])
def test_fractions_and_counts(limit: float, count: int) -> None:
    assert len(chosen(100, limit=limit)) == count


def test_without_a_limit_all_documents() -> None:
    assert chosen(7) == list(range(7))


def test_samples_are_unique_and_sorted() -> None:
    assert chosen(10, samples=[5, 0, 5, 9]) == [0, 5, 9]


def test_a_document_that_does_not_exist_is_named() -> None:
    with pytest.raises(TaskError, match=r"samples=10 does not exist: gsm8k has documents 0 to 9"):
        chosen(10, samples=[3, 10])


def test_digest_follows_content() -> None:
    def digest(documents: list[dict[str, str]], pool: list[dict[str, str]], shots: int = 0) -> str:
        task = FakeTask(
            task_docs=documents, sampler=SimpleNamespace(df=pool), get_config={"num_fewshot": shots}.get
        )
        return documents_digest({"tasks": {"t": task}}, {"t": [0, 2]})["t"]  # type: ignore[typeddict-item]

    documents = [{"q": "a"}, {"q": "b"}, {"q": "c"}]
    first = digest(documents, [{"q": "x"}])
    assert digest([{"q": "a"}, {"q": "OTHER"}, {"q": "c"}], [{"q": "x"}]) == first, "not selected"
    assert digest([{"q": "a"}, {"q": "b"}, {"q": "C"}], [{"q": "x"}]) != first
    assert digest(documents, [{"q": "y"}]) == first, "no few-shot examples"
    assert digest(documents, [{"q": "y"}], shots=1) != digest(documents, [{"q": "x"}], shots=1)
