"""The generated documents of the toy tasks: the `custom_dataset` functions of their YAMLs.

Each function ignores lm-eval's metadata and returns {split: Dataset}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moe_lab.tasks.toy.questions import questions
from moe_lab.tasks.toy.requests import requests
from moe_lab.tasks.toy.stories import stories
from moe_lab.tasks.toy.word_problems import word_problems

if TYPE_CHECKING:
    from datasets import Dataset

PROBLEMS = {"test": 500, "validation": 400, "train": 1200}
QUESTIONS = {"test": 500, "validation": 240, "train": 1000, "near": 400, "far": 100}
STORIES = {"test": 100, "validation": 100}
REQUESTS = {"test": 120, "train": 240}


def toy_math(**metadata: Any) -> dict[str, Dataset]:
    """{"question", "answer", "steps"}: see `word_problems`."""
    return _datasets({split: word_problems(split, count) for split, count in PROBLEMS.items()})


def toy_choice(**metadata: Any) -> dict[str, Dataset]:
    """{"question", "choices", "answer", "kind", "subject"}: see `questions`; `near`, `far`: reference sets."""
    return _datasets({split: questions(split, count) for split, count in QUESTIONS.items()})


def toy_text(**metadata: Any) -> dict[str, Dataset]:
    """{"text"}: see `stories`."""
    return _datasets({split: stories(split, count) for split, count in STORIES.items()})


def toy_safety(**metadata: Any) -> dict[str, Dataset]:
    """{"instruction", "harmful", "relation", "subject"}: see `requests`."""
    return _datasets({split: requests(split, count) for split, count in REQUESTS.items()})


def _datasets(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Dataset]:
    from datasets import Dataset

    return {split: Dataset.from_list(documents) for split, documents in rows.items()}
