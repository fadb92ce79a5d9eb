"""The selection of a run's documents, and the hashes of their content."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Set
from random import Random
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from moe_lab.errors import TaskError
from moe_lab.tasks.tuning_split import document_hashes

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.config.schema import Config


def select_documents(
    config: Config, tasks: TaskDict, tuned_on: Set[str] = frozenset()
) -> dict[str, list[int]]:
    """The sorted document numbers of each task, counted in the split that lm-eval evaluates.

    `limit` takes the first documents of a permutation that depends on the task and `sample_seed` only, so that a larger
    limit includes the documents of a smaller one. Documents with one of their `document_hashes` in `tuned_on` are left
    out. Raises TaskError for `samples` that do not exist, and if no document is left.
    """
    chosen = {name: _select(name, len(task.task_docs), config) for name, task in tasks["tasks"].items()}
    if not tuned_on:
        return chosen
    return {name: _without(tuned_on, name, tasks["tasks"][name], chosen[name]) for name in chosen}


def _without(tuned_on: Set[str], name: str, task: Any, numbers: list[int]) -> list[int]:
    hashes = document_hashes(task)
    left = [number for number in numbers if not hashes[number] & tuned_on]
    if not left:
        raise TaskError(
            f"All {len(numbers)} documents of {name} were tuned on: none is left to evaluate. "
            "Lower tuning.num_samples, or leave limit= or samples= out."
        )
    return left


def _select(name: str, count: int, config: Config) -> list[int]:
    if count == 0:
        raise TaskError(f"Task {name} has no documents.")
    if config.samples is not None:
        beyond = [number for number in config.samples if number >= count]
        if beyond:
            raise TaskError(f"samples={beyond[0]} does not exist: {name} has documents 0 to {count - 1}.")
        return sorted(set(config.samples))
    if config.limit is None:
        return list(range(count))
    order = list(range(count))
    Random(f"{name} {config.sample_seed}").shuffle(order)
    limit = math.ceil(count * config.limit) if config.limit < 1 else int(config.limit)
    return sorted(order[:limit])


def documents_digest(tasks: TaskDict, samples: dict[str, list[int]]) -> dict[str, str]:
    """SHA-256 per task of the content of its selected documents and its few-shot examples."""
    return {name: _known_digest(task, samples[name]) for name, task in tasks["tasks"].items()}


_digests: WeakKeyDictionary[Any, dict[tuple[int, ...], str]] = WeakKeyDictionary()


def _known_digest(task: Any, numbers: list[int]) -> str:
    """`_digest`, computed once per task object and list, which the runs of several seeds share."""
    known = _digests.setdefault(task, {})
    key = tuple(numbers)
    if key not in known:
        known[key] = _digest(task, numbers)
    return known[key]


def _digest(task: Any, numbers: list[int]) -> str:
    digest = hashlib.sha256()
    documents = task.task_docs
    chosen = documents if len(numbers) == len(documents) else (documents[number] for number in numbers)
    for document in chosen:
        digest.update(_bytes(document))
    if task.get_config("num_fewshot") and hasattr(task, "sampler"):
        digest.update(b"few-shot")
        for document in task.sampler.df:
            digest.update(_bytes(document))
    return digest.hexdigest()


def _bytes(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, default=str).encode() + b"\n"


def gold_choice(task: Any, document: Any) -> int:
    """Index of the right choice of an lm-eval multiple-choice document, the first of several.

    Raises TaskError if the answer is none of the choices.
    """
    gold = task.doc_to_text(document) if task.multiple_input else task.doc_to_target(document)
    first = gold[0] if isinstance(gold, list) else gold
    if isinstance(first, str):
        choices = task.doc_to_choice(document)
        if first not in choices:
            raise TaskError(f"{task.task_name}: the answer {first!r} is none of the choices.")
        return choices.index(first)
    return int(first)
