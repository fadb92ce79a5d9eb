"""Errors of a task's templates and functions on single documents: before weights load, by task, document and key."""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy

from moe_lab.errors import MoeLabError, TaskError, first_line


def build_all_requests(task: Any, *, samples: Any = None, **options: Any) -> None:
    """lm-eval's `build_all_requests`. Raises TaskError for a document whose prompt or right answer cannot be built.

    lm-eval asks for the right answers of generating tasks after all texts are generated.
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
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise TaskError(f"Task {task.task_name}: its prompts cannot be built: {reason}.") from error
    if task.OUTPUT_TYPE == "generate_until":
        documents = ((instance.doc_id, instance.doc) for instance in task.instances)
        _check(task, ["doc_to_target"], documents, numbers)


def _check(
    task: Any, keys: list[str], documents: Iterable[tuple[int, Any]], numbers: list[int] | None
) -> None:
    """Raise TaskError that names the first document, and the key of the task, which raises an error.

    Args:
        documents: the built ones by their places among `numbers`; None: those of the whole split.
    """
    with _same_random_numbers():
        for place, document in documents:
            for key in keys:
                try:
                    getattr(task, key)(document)
                except Exception as error:
                    number = numbers[place] if numbers else place
                    reason = f"{type(error).__name__}: {first_line(error)}"
                    raise TaskError(f"Task {task.task_name}, document {number}: {key}: {reason}.") from error


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Leave the global random numbers as they are: some tasks shuffle choices with them."""
    state, numpy_state = random.getstate(), numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        numpy.random.set_state(numpy_state)
