"""The data sets of the toy tasks: generated documents, as the `custom_dataset` functions of their
YAMLs.

Each returns {split: Dataset}, and ignores lm-eval's metadata.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
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

MODULES = {
    "word_problems": "word_problems",
    "questions": "questions",
    "stories": "stories",
    "cloze": "stories",
    "requests": "harm",
    "plus_rules": "rules",
    "max_rules": "rules",
    "differences": "differences",
}
"""The module of each function that draws rows."""


@cache
def _dataset(draw: str, split: str, count: int) -> Dataset:
    """Made once in a process: a grid asks for it again in every run."""
    from datasets import Dataset

    module = import_module(f"moe_lab.tasks.toy.{MODULES[draw]}")
    rows = getattr(module, draw)(split, count)
    return Dataset.from_list(rows)


class ToyData:
    """A task's `custom_dataset`. results.json has its repr, as lm-eval writes functions without a
    source."""

    def __init__(self, draw: str, sizes: dict[str, int]):
        self.draw = draw
        self.sizes = sizes

    def __call__(self, **metadata: Any) -> dict[str, Dataset]:
        return {split: _dataset(self.draw, split, count) for split, count in self.sizes.items()}

    def __repr__(self) -> str:
        return f"ToyData({self.draw!r}, {self.sizes})"


toy_math = ToyData("word_problems", PROBLEMS)
"""{"question", "answer", "steps"}"""
toy_choice = ToyData("questions", QUESTIONS)
"""{"question", "choices", "answer", "kind", "subject"}; `near` and `far` are reference sets."""
toy_text = ToyData("stories", STORIES)
"""{"text"}"""
toy_cloze = ToyData("cloze", CLOZE)
"""{"context", "word"}"""
toy_safety = ToyData("requests", REQUESTS)
"""{"instruction", "harmful", "relation", "subject"}"""
toy_rules = ToyData("plus_rules", RULES)
"""{"question", "choices", "answer"}, where the operator means plus; `plus` and `max` are reference
sets."""
toy_rules_max = ToyData("max_rules", RULES)
"""As `toy_rules`, where the operator means max. The reference sets are the same."""
toy_subtract = ToyData("differences", DIFFERENCES)
"""{"question", "answer"}"""
