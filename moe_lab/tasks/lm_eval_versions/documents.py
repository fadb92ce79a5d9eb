"""A task's documents, and whether it has images or executes code."""

from __future__ import annotations

from typing import Any


def evaluated_documents(task: Any) -> Any:
    """The documents that a task evaluates, read once."""
    if not hasattr(task, "task_docs"):
        task.task_docs = task.test_docs() if task.has_test_docs() else task.validation_docs()
    return task.task_docs


def read_first_document(task: Any) -> None:
    """Read the task's documents, and fill the templates with the first one, as 0.4 does while it
    loads a task."""
    if hasattr(task, "task_docs"):
        return
    documents = evaluated_documents(task)
    task.fewshot_docs()
    if documents is None or len(documents) == 0:
        return
    task.doc_to_text(documents[0])
    task.doc_to_target(documents[0])
    if task.config.doc_to_choice is not None:
        task.doc_to_choice(documents[0])


def has_prompt_per_choice(task: Any) -> bool:
    """Whether each choice has a prompt of its own, as in WinoGrande."""
    return bool(
        getattr(task, "multiple_input", 0) or getattr(task.config, "multiple_inputs", False)
    )


def number_of_choices(task: Any, document: Any) -> int:
    """The number of a document's choices. Some metrics ask for more: each choice without its
    prompt."""
    if getattr(task.config, "multiple_inputs", False):
        return len(task.doc_to_text(document))
    return len(task.doc_to_choice(document))


def gold_of(task: Any, document: Any) -> Any:
    """The index or the text of a document's right choice; a list where several are right."""
    if getattr(task, "multiple_input", 0):
        return task.doc_to_text(document)
    return task.doc_to_target(document)


def error_of_template(error: Exception) -> Exception:
    """The error of a template that 0.5 wraps into one with the whole document; any other error as
    it is."""
    if isinstance(error.__cause__, Exception) and str(error).startswith("Error rendering template"):
        return error.__cause__
    return error


def executes_code(task: Any) -> bool:
    """Whether the task executes programs that the model wrote."""
    return bool(task.config.unsafe_code or getattr(task, "UNSAFE_CODE", False))


def is_multimodal(task: Any) -> bool:
    """Whether the task has images or sound."""
    config = task.config
    return bool(getattr(task, "MULTIMODAL", False) or config.doc_to_image or config.doc_to_audio)
