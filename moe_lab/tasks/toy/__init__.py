"""The data sets of the toy tasks: generated documents, as the `custom_dataset` functions of their YAMLs.

Each returns {split: Dataset}, and ignores lm-eval's metadata.
"""

from __future__ import annotations

from functools import cache
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


class ToyData:
    """A task's `custom_dataset`. results.json has its repr, as lm-eval writes functions without a source."""

    def __init__(self, draw: str, sizes: dict[str, int]):
        self.draw, self.sizes = draw, sizes

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
"""{"question", "choices", "answer"}, where the operator means plus; `plus` and `max` are reference sets."""
toy_rules_max = ToyData("max_rules", RULES)
"""As `toy_rules`, where the operator means max. The reference sets are the same."""
toy_subtract = ToyData("differences", DIFFERENCES)
"""{"question", "answer"}"""
