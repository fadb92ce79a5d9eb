"""The data sets of the toy tasks: generated documents, as the `custom_dataset` functions of their YAMLs.

Each function ignores lm-eval's metadata and returns {split: Dataset}. Imports are in the functions, so that
`python -m moe_lab.tasks.toy.corpus` does not import its own module twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

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
RULES = {"test": 320, "validation": 120, "plus": 200, "max": 200}
DIFFERENCES = {"test": 400, "validation": 300, "train": 5940}


def toy_math(**metadata: Any) -> dict[str, Dataset]:
    """{"question", "answer", "steps"}: see `word_problems`."""
    from moe_lab.tasks.toy.word_problems import word_problems

    return _datasets(word_problems, PROBLEMS)


def toy_choice(**metadata: Any) -> dict[str, Dataset]:
    """{"question", "choices", "answer", "kind", "subject"}: see `questions`; `near`, `far`: reference sets."""
    from moe_lab.tasks.toy.questions import questions

    return _datasets(questions, QUESTIONS)


def toy_text(**metadata: Any) -> dict[str, Dataset]:
    """{"text"}: see `stories`."""
    from moe_lab.tasks.toy.corpus import stories

    return _datasets(stories, STORIES)


def toy_cloze(**metadata: Any) -> dict[str, Dataset]:
    """{"context", "word"}: see `cloze`."""
    from moe_lab.tasks.toy.corpus import cloze

    return _datasets(cloze, CLOZE)


def toy_safety(**metadata: Any) -> dict[str, Dataset]:
    """{"instruction", "harmful", "relation", "subject"}: see `requests`."""
    from moe_lab.tasks.toy.questions import requests

    return _datasets(requests, REQUESTS)


def toy_rules(**metadata: Any) -> dict[str, Dataset]:
    """{"question", "choices", "answer"}, where the operator means plus; `plus`, `max`: reference sets. See `rules`."""
    from moe_lab.tasks.toy.rules import plus_rules

    return _datasets(plus_rules, RULES)


def toy_rules_max(**metadata: Any) -> dict[str, Dataset]:
    """As `toy_rules`, where the operator means max. The reference sets are the same."""
    from moe_lab.tasks.toy.rules import max_rules

    return _datasets(max_rules, RULES)


def toy_subtract(**metadata: Any) -> dict[str, Dataset]:
    """{"question", "answer"}: see `differences`."""
    from moe_lab.tasks.toy.word_problems import differences

    return _datasets(differences, DIFFERENCES)


def _datasets(draw: Draw, sizes: dict[str, int]) -> dict[str, Dataset]:
    return {split: _dataset(draw, split, count) for split, count in sizes.items()}


@cache
def _dataset(draw: Draw, split: str, count: int) -> Dataset:
    """Made once in a process: a grid asks for it again in every run."""
    from datasets import Dataset

    return Dataset.from_list(draw(split, count))
