"""The documents of a run: their selection, hashes of their content, and documents held out for tuning.

Tuning documents come, in this order of preference, from a validation split that is not evaluated, from the train split,
or from the evaluated split. A run with a profile that was tuned on them excludes them from its test set.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from moe_lab.errors import TaskError
from moe_lab.tasks.lm_eval_tasks import evaluated_documents, gold_of

if TYPE_CHECKING:
    from datasets import Dataset
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.config.schema import Config


# Tuning documents, held out from a task's test and its few-shot examples

SPLIT = "tuning"
"""Name of the split with the held-out documents."""


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """The number of held-out documents, and the seed of the permutation that they are taken from."""

    num_samples: int
    seed: int


@dataclass(kw_only=True)
class HeldOutDataset:
    """A task's `custom_dataset` with the held-out documents of the `source` split moved to the split `tuning`."""

    task: str
    source: str
    holdout: Holdout
    load: Callable[..., Any]
    """Returns the task's own {split: Dataset}."""
    numbers: list[int] = field(default_factory=list)
    """Sorted row numbers of the held-out documents in the source split, once loaded; all of a smaller split."""

    def __call__(self, **options: Any) -> dict[str, Dataset]:
        splits = self.load(**options)
        rows = splits[self.source]
        order = list(range(len(rows)))
        Random(f"{self.task} {self.source} {self.holdout.seed}").shuffle(order)
        self.numbers = sorted(order[: self.holdout.num_samples])
        others = sorted(order[self.holdout.num_samples :])
        splits[SPLIT], splits[self.source] = rows.select(self.numbers), rows.select(others)
        return splits


_hashes: WeakKeyDictionary[Any, list[frozenset[str]]] = WeakKeyDictionary()


def document_hashes(task: Any) -> list[frozenset[str]]:
    """Hashes of each document that `task` evaluates, of 16 hexadecimal digits. Computed once for a task.

    Two documents that share a hash are the same: they agree in prompt and choices (or the answer, if the prompt is
    empty), in the row of the data set, which several tasks may share, or in an identifier.
    """
    if task not in _hashes:
        columns = _shown_columns(task)
        documents = all_rows(evaluated_documents(task))
        rows = all_rows(task.dataset[task.config.test_split or task.config.validation_split])
        if len(rows) != len(documents):  # the task drops or splits rows
            rows = documents
        _hashes[task] = []
        for document, row in zip(documents, rows, strict=True):
            shown = {
                key: value for key, value in document.items() if columns is None or key in columns
            }
            contents = [shown, row]
            if "task_id" in row:  # HumanEval and HumanEval+ have the same problems by it
                contents.append({"task_id": row["task_id"]})
            digests = (
                hashlib.sha256(content_bytes(content)).hexdigest()[:16] for content in contents
            )
            _hashes[task].append(frozenset(digests))
    return _hashes[task]


def content_bytes(document: Any) -> bytes:
    """A document as bytes, which are equal for equal content."""
    return json.dumps(document, sort_keys=True, default=str).encode()


def all_rows(documents: Any) -> Any:
    """The same rows, converted together, because a Dataset takes four times as long to convert them one by one."""
    plain = hasattr(documents, "to_list") and documents.format["type"] is None
    return documents.to_list() if plain else documents


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
                columns |= {text} & set(evaluated_documents(task).features)
                columns |= meta.find_undeclared_variables(Environment().parse(text))
    return frozenset(columns)


# Selection


def select_documents(
    config: Config, tasks: TaskDict, tuned_on: Set[str] = frozenset()
) -> dict[str, list[int]]:
    """The sorted document numbers of each task in the split that lm-eval evaluates.

    `limit` takes the first documents of a permutation that depends only on the task and `sample_seed`, so that a larger
    limit includes the documents of a smaller one. Documents with one of their `document_hashes` in `tuned_on` are
    excluded. Raises TaskError for `samples` that do not exist, and if no document is left.
    """
    chosen = {}
    for name, task in tasks["tasks"].items():
        count = len(evaluated_documents(task))
        if count == 0:
            raise TaskError(f"Task {name} has no documents.")
        numbers = list(range(count))
        if config.samples is not None:
            numbers = sorted(set(config.samples))
            if max(numbers, default=0) >= count:
                raise TaskError(
                    f"samples={numbers[-1]} does not exist: {name} has documents 0 to {count - 1}."
                )
        elif config.limit is not None:
            Random(f"{task.task_name} {config.sample_seed}").shuffle(numbers)
            limit = math.ceil(count * config.limit) if config.limit < 1 else int(config.limit)
            numbers = sorted(numbers[:limit])
        chosen[name] = numbers
        if tuned_on:
            hashes = document_hashes(task)
            chosen[name] = [number for number in numbers if not hashes[number] & tuned_on]
        if not chosen[name]:
            raise TaskError(
                f"All {len(numbers)} documents of {name} were tuned on: none is left to evaluate. "
                "Lower tuning.num_samples, or leave limit= or samples= out."
            )
    return chosen


_digests: WeakKeyDictionary[Any, dict[tuple[int, ...], str]] = WeakKeyDictionary()


def documents_digest(tasks: TaskDict, samples: dict[str, list[int]]) -> dict[str, str]:
    """SHA-256 per task of the content of its selected documents and its few-shot examples.

    Computed once per task object and list, which the runs of several seeds share.
    """
    digests = {}
    for name, task in tasks["tasks"].items():
        known, numbers = _digests.setdefault(task, {}), tuple(samples[name])
        if numbers not in known:
            digest, documents = hashlib.sha256(), evaluated_documents(task)
            if len(numbers) < len(documents):
                several = hasattr(documents, "select")
                documents = (
                    documents.select(numbers) if several else [documents[i] for i in numbers]
                )
            for document in all_rows(documents):
                digest.update(content_bytes(document) + b"\n")
            if task.get_config("num_fewshot") and hasattr(task, "sampler"):
                digest.update(b"few-shot")
                for document in task.sampler.df:
                    digest.update(content_bytes(document) + b"\n")
            known[numbers] = digest.hexdigest()
        digests[name] = known[numbers]
    return digests


def gold_choice(task: Any, document: Any) -> int:
    """Index of the right choice of an lm-eval multiple-choice document; of several right ones, the first.

    Raises TaskError if the answer is none of the choices.
    """
    gold = gold_of(task, document)
    first = gold[0] if isinstance(gold, list) else gold
    if first is None:  # lm-eval 0.5 has looked it up
        raise TaskError(f"{task.task_name}: the answer of a document is none of the choices.")
    if isinstance(first, str):
        choices = task.doc_to_choice(document)
        if first not in choices:
            raise TaskError(f"{task.task_name}: the answer {first!r} is none of the choices.")
        return choices.index(first)
    return int(first)
