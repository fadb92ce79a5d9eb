"""Tuning documents, held out from a task's test and its few-shot examples.

They come, in this order of preference, from a validation split that is not evaluated, from the train split, or from the
evaluated split. A run with the profile tuned on them leaves them out of its test.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from moe_lab.errors import TaskError

if TYPE_CHECKING:
    from datasets import Dataset

SPLIT = "tuning"
"""Name of the split with the held-out documents."""


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """The number of held-out documents, and the seed of the permutation that they are taken from."""

    num_samples: int
    seed: int

    def rows(self, name: str, split: str, count: int) -> list[int]:
        """The sorted row numbers of the held-out documents among `count` rows; all rows of a smaller split."""
        order = list(range(count))
        Random(f"{name} {split} {self.seed}").shuffle(order)
        return sorted(order[: self.num_samples])


@dataclass(frozen=True, kw_only=True)
class HeldOutDataset:
    """A task's `custom_dataset` with the held-out documents of the `source` split moved to the split `tuning`."""

    task: str
    source: str
    holdout: Holdout
    load: Callable[..., Any]
    """Returns the task's own {split: Dataset}."""

    def __call__(self, **options: Any) -> dict[str, Dataset]:
        splits = self.load(**options)
        rows = splits[self.source]
        chosen = self.holdout.rows(self.task, self.source, len(rows))
        others = sorted(set(range(len(rows))) - set(chosen))
        splits[SPLIT], splits[self.source] = rows.select(chosen), rows.select(others)
        return splits

    def numbers(self, task: Any) -> list[int]:
        """Row numbers of the held-out documents in the source split of a task built with this."""
        count = len(task.dataset[SPLIT]) + len(task.dataset[self.source])
        return self.holdout.rows(self.task, self.source, count)


def source_split(config: dict[str, Any], exists: Callable[[str], bool]) -> str:
    """The split that tuning documents are taken from; `exists` tells whether a split is available."""
    evaluated = config.get("test_split") or config["validation_split"]
    for key in ("validation_split", "training_split"):
        split = config.get(key)
        if split and split != evaluated and exists(split):
            return split
    return evaluated


def first_split(
    config: dict[str, Any], candidates: Sequence[str], exists: Callable[[str], bool], place: str
) -> str:
    """The first available split of an lm-eval task configuration.

    `candidates` are names of splits, or keys of the configuration that name one (`training_split`). Raises TaskError
    if `place` has none of them.
    """
    for candidate in candidates:
        split = config.get(candidate) if candidate.endswith("_split") else candidate
        if split and exists(split):
            return split
    kinds = " or ".join(candidate.removesuffix("_split") for candidate in candidates)
    raise TaskError(f"Task {config['task']} has no {kinds} split in {place}.")


def held_out_config(config: dict[str, Any], source: str, load: Callable[..., Any], holdout: Holdout) -> dict:
    """The task configuration that evaluates the held-out documents of `source` instead of its test."""
    dataset = HeldOutDataset(task=config["task"], source=source, holdout=holdout, load=load)
    view = {**config, "custom_dataset": dataset, "test_split": SPLIT}
    if not any(config.get(key) for key in ("fewshot_split", "training_split", "validation_split")):
        # lm-eval would draw examples from the evaluated documents themselves
        view["fewshot_split"] = source
        view["fewshot_config"] = {"split": source, **(config.get("fewshot_config") or {})}
    return view


IDENTIFIERS = ("task_id",)
"""Columns that identify a document across data sets: HumanEval and HumanEval+ have the same problems."""


_hashes: WeakKeyDictionary[Any, list[frozenset[str]]] = WeakKeyDictionary()


def document_hashes(task: Any) -> list[frozenset[str]]:
    """Hashes of each document that `task` evaluates, of 16 hexadecimal digits. Computed once for a task.

    Two documents that share a hash are the same: they agree in prompt and choices (or the answer, if the prompt is
    empty), in the row of the data set, which several tasks may share, or in an identifier.
    """
    if task not in _hashes:
        columns = _shown_columns(task)
        rows = _rows(task) or task.task_docs
        _hashes[task] = [
            frozenset({_hash(_only(document, columns)), _hash(row), *_identifiers(row)})
            for document, row in zip(task.task_docs, rows, strict=True)
        ]
    return _hashes[task]


def _rows(task: Any) -> Any:
    """The data set's rows of the evaluated documents; None if a task drops or splits rows."""
    rows = task.dataset[task.config.test_split or task.config.validation_split]
    return rows if len(rows) == len(task.task_docs) else None


def _only(document: dict[str, Any], columns: frozenset[str] | None) -> dict[str, Any]:
    return {key: value for key, value in document.items() if columns is None or key in columns}


def _identifiers(row: dict[str, Any]) -> list[str]:
    return [_hash({name: row[name]}) for name in IDENTIFIERS if name in row]


def _hash(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _shown_columns(task: Any) -> frozenset[str] | None:
    """The columns in the templates of a task's prompt and choices; None if a function builds them."""
    from jinja2 import Environment, meta

    prompt = [task.config.doc_to_text, task.config.doc_to_choice]
    columns: set[str] = set()
    for template in prompt if task.config.doc_to_text else [task.config.doc_to_target]:
        if callable(template):
            return None
        for text in template if isinstance(template, list) else [template]:
            if isinstance(text, str):
                columns |= {text} & set(task.features)
                columns |= meta.find_undeclared_variables(Environment().parse(text))
    return frozenset(columns)
