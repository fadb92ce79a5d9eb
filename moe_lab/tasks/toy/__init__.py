"""The data sets of the toy tasks: generated documents, as the `custom_dataset` functions of their YAMLs.

Each returns {split: Dataset}, and ignores lm-eval's metadata.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset


PROBLEMS = {"test": 500, "validation": 400, "train": 1200}
QUESTIONS = {"test": 500, "validation": 240, "train": 1000, "near": 400, "far": 100}
STORIES = {"test": 100, "validation": 100}
CLOZE = {"test": 600, "validation": 60}
"""Texts."""
REQUESTS = {"test": 120, "train": 240}
RULES = {"test": 320, "validation": 120, "plus": 200, "max": 200}
DIFFERENCES = {"test": 400, "validation": 300, "train": 5940}


@cache
def _dataset(draw: str, split: str, count: int) -> Dataset:
    """Made once in a process: a grid asks for it again in every run."""
    from datasets import Dataset

    # imported here, so that `python -m moe_lab.tasks.toy.corpus` does not import its own module twice
    from moe_lab.tasks.toy import corpus, questions, rules, word_problems

    modules = (corpus, questions, rules, word_problems)
    drawn = next(getattr(module, draw) for module in modules if hasattr(module, draw))
    return Dataset.from_list(drawn(split, count))


def _datasets(draw: str, sizes: dict[str, int], **metadata: Any) -> dict[str, Dataset]:
    return {split: _dataset(draw, split, count) for split, count in sizes.items()}


toy_math = partial(_datasets, "word_problems", PROBLEMS)
"""{"question", "answer", "steps"}"""
toy_choice = partial(_datasets, "questions", QUESTIONS)
"""{"question", "choices", "answer", "kind", "subject"}; `near` and `far` are reference sets."""
toy_text = partial(_datasets, "stories", STORIES)
"""{"text"}"""
toy_cloze = partial(_datasets, "cloze", CLOZE)
"""{"context", "word"}"""
toy_safety = partial(_datasets, "requests", REQUESTS)
"""{"instruction", "harmful", "relation", "subject"}"""
toy_rules = partial(_datasets, "plus_rules", RULES)
"""{"question", "choices", "answer"}, where the operator means plus; `plus` and `max` are reference sets."""
toy_rules_max = partial(_datasets, "max_rules", RULES)
"""As `toy_rules`, where the operator means max. The reference sets are the same."""
toy_subtract = partial(_datasets, "differences", DIFFERENCES)
"""{"question", "answer"}"""
