"""The requests of every document, as lm-eval made them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moe_lab.results.request_log import request_key

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.engine.hf import Request


@dataclass
class Documents:
    """Documents of an evaluation that has just been made."""

    requests: list[list[str]] = field(default_factory=list)
    """Per document, the keys of its requests; the same request of two documents has one key."""
    asked: dict[str, tuple[str, Request]] = field(default_factory=dict)
    """(kind, request) by key."""


def documents_of(tasks: TaskDict) -> Documents:
    """All documents, task by task. Several answers to a prompt are as many requests."""
    from moe_lab.engine.hf import Request

    found = Documents()
    for task in tasks["tasks"].values():
        by_document: dict[int | None, list[str]] = {}
        for instance in task.instances:
            for repeat in range(instance.repeats or 1):
                key = request_key(instance.request_type, instance.args, repeat)
                found.asked[key] = instance.request_type, Request(instance.args, repeat)
                by_document.setdefault(instance.doc_id, []).append(key)
        found.requests += by_document.values()
    return found
