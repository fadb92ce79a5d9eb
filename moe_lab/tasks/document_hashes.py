"""Hashes of the content of documents: by which the same document is known in two tasks, and for run
ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from moe_lab.tasks.lm_eval_versions.documents import evaluated_documents

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

_hashes: WeakKeyDictionary[Any, list[frozenset[str]]] = WeakKeyDictionary()


def document_hashes(task: Any) -> list[frozenset[str]]:
    """Hashes of each document that `task` evaluates, two or three for each. Computed once for a
    task.

    Two documents that share a hash are the same: they agree in prompt and choices (or the answer,
    if the prompt is empty), in the row of the data set, which several tasks may share, or in an
    identifier.
    """
    if task in _hashes:
        return _hashes[task]
    columns = _shown_columns(task)
    documents = all_rows(evaluated_documents(task))
    rows = all_rows(task.dataset[task.config.test_split or task.config.validation_split])
    if len(rows) != len(documents):  # the task drops or splits rows
        rows = documents
    hashes_of_documents = []
    for document, row in zip(documents, rows, strict=True):
        hashes_of_documents.append(_hashes_of(document, row, columns))
    _hashes[task] = hashes_of_documents
    return hashes_of_documents


def _hashes_of(
    document: Mapping[str, Any], row: Mapping[str, Any], columns: frozenset[str] | None
) -> frozenset[str]:
    """The hashes of a document: of its `columns` (None: all), of its row, and of its identifier if
    it has one."""
    shown: Mapping[str, Any] = document
    if columns is not None:
        shown = {key: value for key, value in document.items() if key in columns}
    hashes = {_short_hash(shown), _short_hash(row)}
    if "task_id" in row:  # HumanEval and HumanEval+ have the same problems by it
        hashes.add(_short_hash({"task_id": row["task_id"]}))
    return frozenset(hashes)


def _short_hash(content: Any) -> str:
    """16 hexadecimal digits."""
    return hashlib.sha256(content_bytes(content)).hexdigest()[:16]


def content_bytes(document: Any) -> bytes:
    """A document as bytes, which are equal for equal content."""
    return json.dumps(document, sort_keys=True, default=str).encode()


def all_rows(documents: Any) -> Any:
    """The same rows, converted together, because a Dataset takes four times as long to convert them
    one by one."""
    is_plain = hasattr(documents, "to_list") and documents.format["type"] is None
    return documents.to_list() if is_plain else documents


def _shown_columns(task: Any) -> frozenset[str] | None:
    """The columns in the templates of a task's prompt and choices; None if a function builds
    them."""
    from jinja2 import Environment, meta

    if task.config.doc_to_text:
        templates = [task.config.doc_to_text, task.config.doc_to_choice]
    else:
        templates = [task.config.doc_to_target]
    columns: set[str] = set()
    for template in templates:
        if callable(template):
            return None
        texts = template if isinstance(template, list) else [template]
        for text in texts:
            if not isinstance(text, str):
                continue
            if text in evaluated_documents(task).features:
                columns.add(text)
            columns |= meta.find_undeclared_variables(Environment().parse(text))
    return frozenset(columns)


_digests: WeakKeyDictionary[Any, dict[tuple[int, ...], str]] = WeakKeyDictionary()


def documents_digest(tasks: TaskDict, samples: dict[str, list[int]]) -> dict[str, str]:
    """SHA-256 per task of the content of its selected documents and its few-shot examples.

    Computed once per task object and list, which the runs of several seeds share.
    """
    digests = {}
    for name, task in tasks["tasks"].items():
        digests_of_task = _digests.setdefault(task, {})
        numbers = tuple(samples[name])
        if numbers not in digests_of_task:
            digests_of_task[numbers] = _content_digest(task, numbers)
        digests[name] = digests_of_task[numbers]
    return digests


def _content_digest(task: Any, numbers: tuple[int, ...]) -> str:
    """SHA-256 of the content of these documents and of the few-shot examples."""
    documents = evaluated_documents(task)
    if len(numbers) < len(documents):
        if hasattr(documents, "select"):
            documents = documents.select(numbers)
        else:
            documents = [documents[number] for number in numbers]
    digest = hashlib.sha256()
    for document in all_rows(documents):
        digest.update(content_bytes(document) + b"\n")
    if task.get_config("num_fewshot") and hasattr(task, "sampler"):
        digest.update(b"few-shot")
        for example in task.sampler.df:
            digest.update(content_bytes(example) + b"\n")
    return digest.hexdigest()
