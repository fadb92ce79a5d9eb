"""Breaks if a stored result says other things of its tasks than its configuration does."""

from __future__ import annotations

from typing import Any

import pytest

from moe_lab.results.model import RunResult


@pytest.mark.parametrize(
    ("choices", "form"),
    [({"a": "letters", "b": "letters"}, "letters"), ({"a": "letters"}, "letters"), ({}, "text")],
)
def test_a_group_was_asked_in_letters_if_a_task_of_it_was(choices, form):
    """A group may hold tasks without choices, too."""
    content: dict[str, Any] = {
        "group_subtasks": {"group": ["a", "b"]},
        "configs": {task: {"doc_to_choice": choices.get(task)} for task in ("a", "b")},
        "results": {},
        "moe_lab": {"samples": {"a": [0], "b": [0]}},
    }
    assert RunResult(content).answer_form("group") == form
    assert RunResult(content).answer_form("b") == ("letters" if "b" in choices else "text")
