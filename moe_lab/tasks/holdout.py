"""Documents held out for tuning from a task's test and its few-shot examples.

They come, in this order of preference, from a validation split that is not evaluated, from the
train split, or from the evaluated split. A run with a profile that was tuned on them excludes them
from its test set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

SPLIT = "tuning"
"""Name of the split with the held-out documents."""


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """The number of held-out documents, and the seed of the permutation that they are taken
    from."""

    num_samples: int
    seed: int


@dataclass(kw_only=True)
class HeldOutDataset:
    """A task's `custom_dataset` with the held-out documents of the `source` split moved to the
    split `tuning`."""

    task: str
    source: str
    holdout: Holdout
    load: Callable[..., Any]
    """Returns the task's own {split: Dataset}."""
    numbers: list[int] = field(default_factory=list)
    """Sorted row numbers of the held-out documents in the source split, once loaded; all of a
    smaller split."""

    def __call__(self, **options: Any) -> dict[str, Dataset]:
        splits = self.load(**options)
        rows = splits[self.source]
        order = list(range(len(rows)))
        Random(f"{self.task} {self.source} {self.holdout.seed}").shuffle(order)
        self.numbers = sorted(order[: self.holdout.num_samples])
        remaining = sorted(order[self.holdout.num_samples :])
        splits[SPLIT] = rows.select(self.numbers)
        splits[self.source] = rows.select(remaining)
        return splits
