"""Errors of a task's templates and functions on single documents: before weights load, by task,
document and key."""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
from lm_eval.utils import create_iterator

from moe_lab.errors import MoeLabError, TaskError, first_line
from moe_lab.tasks.lm_eval_versions.documents import (
    error_of_template,
    evaluated_documents,
    has_prompt_per_choice,
)


def build_all_requests(
    task: Any, *, check_golds: bool = False, samples: Any = None, **options: Any
) -> None:
    """lm-eval's `build_all_requests`. Raises TaskError for a document whose prompt or right answer
    cannot be built.

    lm-eval asks for the right answers of generating tasks after all texts are generated.

    Args:
        check_golds: also raise for a right answer that is none of a document's choices. lm-eval
            scores every answer to it as wrong.
    """
    numbers = sorted(samples) if samples else None
    try:
        type(task).build_all_requests(task, samples=samples, **options)
    except MoeLabError:
        raise
    except Exception as error:
        keys = ["doc_to_text", "doc_to_target"]
        if task.get_config("doc_to_choice") is not None:
            keys.insert(1, "doc_to_choice")
        _check(task, keys, task.doc_iterator(samples=samples), numbers)
        error = error_of_template(error)
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise TaskError(f"Task {task.task_name}: its prompts cannot be built: {reason}.") from error
    _check_all_are_asked(task, samples, numbers, options)
    if task.OUTPUT_TYPE == "generate_until":
        documents = ((instance.doc_id, instance.doc) for instance in task.instances)
        _check(task, ["doc_to_target"], documents, numbers)
    if check_golds and task.OUTPUT_TYPE == "multiple_choice":
        _check_golds(task, numbers)


def _check_all_are_asked(
    task: Any, samples: Any, numbers: list[int] | None, options: dict[str, Any]
) -> None:
    """Raise TaskError for a document without a request: lm-eval 0.5 leaves out those whose choices
    it cannot read."""
    asked = {instance.doc_id for instance in task.instances}
    shared = {key: options[key] for key in ("limit", "rank", "world_size") if options.get(key)}
    count = len(numbers or evaluated_documents(task))
    expected = list(create_iterator(range(count), **shared))
    if len(asked) == len(expected):
        return
    for place, document in task.doc_iterator(samples=samples, **shared):
        if place in asked:
            continue
        number = numbers[place] if numbers else place
        for key in ("doc_to_choice", "doc_to_target"):
            if getattr(task, key)(document) is None:
                raise TaskError(
                    f"Task {task.task_name}, document {number}: {key}: lm-eval cannot read its "
                    "value."
                )
        raise TaskError(
            f"Task {task.task_name}, document {number}: lm-eval makes no request of it."
        )


def _check(
    task: Any, keys: list[str], documents: Iterable[tuple[int, Any]], numbers: list[int] | None
) -> None:
    """Raise TaskError that names the first document, and the key of the task, which raises an
    error.

    Args:
        documents: the built ones by their places among `numbers`; None: those of the whole split.
    """
    with _same_random_numbers():
        for place, document in documents:
            for key in keys:
                try:
                    getattr(task, key)(document)
                except Exception as raised:
                    error = error_of_template(raised)
                    number = numbers[place] if numbers else place
                    reason = f"{type(error).__name__}: {first_line(error)}"
                    raise TaskError(
                        f"Task {task.task_name}, document {number}: {key}: {reason}."
                    ) from error


def _check_golds(task: Any, numbers: list[int] | None) -> None:
    """Raise TaskError for the first document whose right answer is none of its choices."""
    if callable(task.config.process_results) or has_prompt_per_choice(task):
        return
    with _same_random_numbers():
        for instance in task.instances:
            if instance.idx != 0:  # another choice of the same document
                continue
            choices = list(task.doc_to_choice(instance.doc))
            gold = task.doc_to_target(instance.doc)
            golds = gold if isinstance(gold, list) else [gold]
            for answer in golds:
                possible = choices if isinstance(answer, str) else range(len(choices))
                if answer not in possible:
                    number = numbers[instance.doc_id] if numbers else instance.doc_id
                    raise TaskError(
                        f"Task {task.task_name}, document {number}: doc_to_target: {answer!r} is "
                        f"none of its {len(choices)} choices, which are counted from 0."
                    )


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Leave the global random numbers as they are: some tasks shuffle choices with them."""
    state = random.getstate()
    numpy_state = numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        numpy.random.set_state(numpy_state)
