"""Differences of two numbers: a kind of question that the training corpus does not have.

    How far is 23 from 58?
    58 - 23 = 35

The embedded model was trained on word problems, in which a number of at most 60 is subtracted from
a larger one that the text names before it. Here it has to find the larger number first, and to
subtract numbers of up to 98. So fine-tuning has something to learn. A pair of numbers is in one
split in both orders.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Any

from moe_lab.tasks.toy.world import generator, split_of

DIFFERENCE_SHARES = (("test", 0.15), ("validation", 0.10), ("train", 0.75))
LEAST_NUMBER = 10
MOST_NUMBER = 99


@cache
def number_pairs(split: str) -> tuple[tuple[int, int], ...]:
    """All pairs of different numbers of a split, the smaller number first."""
    pairs = []
    for a, b in combinations(range(LEAST_NUMBER, MOST_NUMBER + 1), 2):
        if split_of(f"differences/{a}/{b}", DIFFERENCE_SHARES) == split:
            pairs.append((a, b))
    return tuple(pairs)


def differences(split: str, count: int) -> list[dict[str, str]]:
    """Up to `count` questions of a split: {"question", "answer"}.

    Each pair comes once, in a random order of its numbers, before any pair comes in its other
    order.
    """
    rng = generator("differences", split)
    pairs = rng.sample(number_pairs(split), len(number_pairs(split)))
    in_random_order = [(a, b) if rng.random() < 0.5 else (b, a) for a, b in pairs]
    in_other_order = [(b, a) for a, b in in_random_order]
    rows = []
    for a, b in (in_random_order + in_other_order)[:count]:
        question = f"How far is {a} from {b}?"
        answer = f"{max(a, b)} - {min(a, b)} = {abs(a - b)}"
        rows.append({"question": question, "answer": answer})
    return rows


def conversations(split: str, count: int) -> list[dict[str, Any]]:
    """The same questions as chat rows for fine-tuning."""
    rows = []
    for row in differences(split, count):
        messages = [
            {"role": "user", "content": row["question"]},
            {"role": "assistant", "content": row["answer"]},
        ]
        rows.append({"messages": messages})
    return rows
