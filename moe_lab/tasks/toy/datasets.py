"""The generated documents of the toy tasks: the `custom_dataset` functions of their YAMLs.

Each function ignores lm-eval's metadata and returns {split: Dataset}.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from moe_lab.tasks.toy.cloze import cloze
from moe_lab.tasks.toy.differences import differences
from moe_lab.tasks.toy.questions import questions
from moe_lab.tasks.toy.requests import requests
from moe_lab.tasks.toy.rules import max_rules, plus_rules
from moe_lab.tasks.toy.stories import stories
from moe_lab.tasks.toy.word_problems import word_problems

if TYPE_CHECKING:
    from datasets import Dataset

Draw = Callable[[str, int], list[dict[str, Any]]]
"""(split, count) -> documents, the same in every call."""
PROBLEMS = {"test": 500, "validation": 400, "train": 1200}
QUESTIONS = {"test": 500, "validation": 240, "train": 1000, "near": 400, "far": 100}
STORIES = {"test": 100, "validation": 100}
CLOZE = {"test": 600, "validation": 60}
"""Texts."""
REQUESTS = {"test": 120, "train": 240}
DIFFERENCES = {"test": 400, "validation": 300, "train": 5940}
RULES = {"test": 320, "validation": 120, "plus": 200, "max": 200}


def toy_math(**metadata: Any) -> dict[str, Dataset]:
    """{"question", "answer", "steps"}: see `word_problems`."""
    return _datasets(word_problems, PROBLEMS)


def toy_choice(**metadata: Any) -> dict[str, Dataset]:
    """{"question", "choices", "answer", "kind", "subject"}: see `questions`; `near`, `far`: reference sets."""
    return _datasets(questions, QUESTIONS)


def toy_text(**metadata: Any) -> dict[str, Dataset]:
    """{"text"}: see `stories`."""
    return _datasets(stories, STORIES)


def toy_cloze(**metadata: Any) -> dict[str, Dataset]:
    """{"context", "word"}: see `cloze`."""
    return _datasets(cloze, CLOZE)


def toy_safety(**metadata: Any) -> dict[str, Dataset]:
    """{"instruction", "harmful", "relation", "subject"}: see `requests`."""
    return _datasets(requests, REQUESTS)


def toy_subtract(**metadata: Any) -> dict[str, Dataset]:
    """{"question", "answer"}: see `differences`."""
    return _datasets(differences, DIFFERENCES)


def toy_rules(**metadata: Any) -> dict[str, Dataset]:
    """{"question", "choices", "answer"}, where the operator means plus; `plus`, `max`: reference sets. See `rules`."""
    return _datasets(plus_rules, RULES)


def toy_rules_max(**metadata: Any) -> dict[str, Dataset]:
    """As `toy_rules`, where the operator means max. The reference sets are the same."""
    return _datasets(max_rules, RULES)


def _datasets(draw: Draw, sizes: dict[str, int]) -> dict[str, Dataset]:
    from datasets import Dataset

    return {split: Dataset.from_list(_documents(draw, split, count)) for split, count in sizes.items()}


@cache
def _documents(draw: Draw, split: str, count: int) -> list[dict[str, Any]]:
    """Drawn once in a process: a grid asks for them again in every run."""
    return draw(split, count)
