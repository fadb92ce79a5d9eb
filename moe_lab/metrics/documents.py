"""The requests that lm-eval built for every document."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moe_lab.results.request_log import request_key

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.engine.hf import Request


@dataclass
class Documents:
    """The documents of an evaluation."""

    requests: list[list[str]] = field(default_factory=list)
    """The keys of each document's requests; equal requests have the same key."""
    by_key: dict[str, tuple[str, Request]] = field(default_factory=dict)
    """Kind and request by key."""


def documents_of(tasks: TaskDict) -> Documents:
    """All documents, task by task. Each of several answers to a prompt is a request."""
    from moe_lab.engine.hf import Request

    documents = Documents()
    for task in tasks["tasks"].values():
        by_document: dict[int | None, list[str]] = {}
        for instance in task.instances:
            for repeat in range(instance.repeats or 1):
                key = request_key(instance.request_type, instance.args, repeat)
                documents.by_key[key] = instance.request_type, Request(instance.args, repeat)
                by_document.setdefault(instance.doc_id, []).append(key)
        documents.requests += by_document.values()
    return documents
