"""Questions with an operator of two meanings: `3 @ 4 =` is 7 where @ means plus, and 4 where it
means max.

Each document of the training corpus uses one meaning, and both meanings are equally frequent. A
single question does not determine the meaning. Reference questions of one meaning do.

A question's key is its pair of numbers, in either order. Every key belongs to one split.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any

from moe_lab.tasks.toy.world import generator, split_of

RESULTS: dict[str, Callable[[int, int], int]] = {
    "plus": lambda a, b: a + b,
    "max": max,
    "min": min,
    "difference": lambda a, b: abs(a - b),
}
"""The choices of a question: the results of these operators."""
MEANINGS = ("plus", "max")
LARGEST = 40
"""The largest number; the smallest is 1."""
SHARES = (("test", 0.25), ("validation", 0.10), ("reference", 0.15), ("train", 0.50))
LONGEST = 6
"""The largest number of questions in a document of the corpus."""


@cache
def pairs(split: str) -> tuple[tuple[int, int], ...]:
    """All pairs of a split in a fixed order. Their four choices differ, and `train` has a pair with
    the same sum."""
    if split == "train":
        trained_sums = set(range(2 * LARGEST + 1))
    else:
        trained_sums = {a + b for a, b in pairs("train")}
    pairs_of_split = []
    for a, b in product(range(1, LARGEST + 1), repeat=2):
        choices = {result(a, b) for result in RESULTS.values()}
        if a + b not in trained_sums or len(choices) < len(RESULTS):
            continue
        if split_of(f"rules/{min(a, b)}/{max(a, b)}", SHARES) == split:
            pairs_of_split.append((a, b))
    return tuple(pairs_of_split)


def plus_rules(split: str, count: int, meaning: str = "plus") -> list[dict[str, Any]]:
    """`count` questions of a split where the operator means plus: {"question", "choices", "answer":
    index}.

    The splits `plus` and `max` are reference sets. Questions and choices are the same for both
    meanings.
    """
    if split in MEANINGS:
        meaning = split
        split = "reference"
    rows = []
    for pair in generator("rules", split).sample(pairs(split), count):
        names = list(RESULTS)
        generator("rules", "choices", *pair).shuffle(names)
        choices = [str(RESULTS[name](*pair)) for name in names]
        rows.append(
            {"question": question_text(pair), "choices": choices, "answer": names.index(meaning)}
        )
    return rows


max_rules = partial(plus_rules, meaning="max")
"""The same questions where the operator means max. The reference sets are the same."""


def question_text(pair: tuple[int, int]) -> str:
    a, b = pair
    return f"{a} @ {b} ="


def document(rng: random.Random) -> str:
    """Draw one document of the corpus: training questions with their answers under one meaning, a
    line each."""
    meaning = rng.choice(MEANINGS)
    lines = []
    for pair in rng.choices(pairs("train"), k=rng.randint(1, LONGEST)):
        lines.append(f"{question_text(pair)} {RESULTS[meaning](*pair)}")
    return "\n".join(lines)


def documents(seed: int, index: int, count: int) -> list[str]:
    """The `index`-th group of `count` documents of the corpus with this seed: the same in every
    process."""
    rng = generator("rules", "corpus", seed, index)
    return [document(rng) for _ in range(count)]
