"""The documents that a run evaluates, and their right choices."""

from __future__ import annotations

import math
from collections.abc import Set
from random import Random
from typing import TYPE_CHECKING, Any

from moe_lab.errors import TaskError
from moe_lab.tasks.document_hashes import document_hashes
from moe_lab.tasks.lm_eval_versions.documents import evaluated_documents, gold_of

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.config.schema import Config


def select_documents(
    config: Config, tasks: TaskDict, tuned_on: Set[str] = frozenset()
) -> dict[str, list[int]]:
    """The sorted document numbers of each task in the split that lm-eval evaluates.

    `limit` takes the first documents of a permutation that depends only on the task and
    `sample_seed`, so that a larger limit includes the documents of a smaller one. Documents with
    one of their `document_hashes` in `tuned_on` are excluded. Raises TaskError for `samples` that
    do not exist, and if no document is left.
    """
    chosen = {}
    for name, task in tasks["tasks"].items():
        numbers = _selected_numbers(config, name, task)
        chosen[name] = numbers
        if tuned_on:
            hashes = document_hashes(task)
            chosen[name] = [number for number in numbers if hashes[number].isdisjoint(tuned_on)]
        if not chosen[name]:
            raise TaskError(
                f"All {len(numbers)} documents of {name} were tuned on: none is left to evaluate. "
                "Lower tuning.num_samples, or leave limit= or samples= out."
            )
    return chosen


def _selected_numbers(config: Config, name: str, task: Any) -> list[int]:
    """The sorted document numbers that `samples` or `limit` select; all without them."""
    count = len(evaluated_documents(task))
    if count == 0:
        raise TaskError(f"Task {name} has no documents.")
    if config.samples is not None:
        numbers = sorted(set(config.samples))
        if max(numbers, default=0) >= count:
            raise TaskError(
                f"samples={numbers[-1]} does not exist: {name} has documents 0 to {count - 1}."
            )
        return numbers
    numbers = list(range(count))
    if config.limit is None:
        return numbers
    Random(f"{task.task_name} {config.sample_seed}").shuffle(numbers)
    limit = math.ceil(count * config.limit) if config.limit < 1 else int(config.limit)
    return sorted(numbers[:limit])


def gold_choice(task: Any, document: Any) -> int:
    """Index of the right choice of an lm-eval multiple-choice document; of several right ones, the
    first.

    Raises TaskError if the answer is none of the choices.
    """
    gold = gold_of(task, document)
    if isinstance(gold, list):
        gold = gold[0]
    if gold is None:  # lm-eval 0.5 has looked it up
        raise TaskError(f"{task.task_name}: the answer of a document is none of the choices.")
    if isinstance(gold, str):
        choices = task.doc_to_choice(document)
        if gold not in choices:
            raise TaskError(f"{task.task_name}: the answer {gold!r} is none of the choices.")
        return choices.index(gold)
    return int(gold)
