"""The absolute difference of two numbers of two digits: a kind of question that the training corpus does not have.

    How far is 23 from 58?
    58 - 23 = 35

The embedded model was trained on the steps of word problems, in which a number of at most 60 is subtracted from a
larger one that the text names before it. It has never read this question. Here it has to find the larger number first,
and to subtract numbers of up to 98. So there is something for fine-tuning to learn.

A pair of numbers is in one split in both orders.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Any

from moe_lab.tasks.toy.seeded import generator, split_of

SHARES = (("test", 0.15), ("validation", 0.10), ("train", 0.75))
LEAST, MOST = 10, 99
QUESTION = "How far is {a} from {b}?"


@cache
def pairs(split: str) -> tuple[tuple[int, int], ...]:
    """All pairs of different numbers of a split, the smaller number first."""
    every = combinations(range(LEAST, MOST + 1), 2)
    return tuple((a, b) for a, b in every if split_of(f"differences/{a}/{b}", SHARES) == split)


def differences(split: str, count: int) -> list[dict[str, str]]:
    """Up to `count` questions of a split: {"question", "answer"}.

    Each pair comes once, in a random order of its numbers, before any pair comes in its other order.
    """
    rng = generator("differences", split)
    drawn = [(a, b) if rng.random() < 0.5 else (b, a) for a, b in rng.sample(pairs(split), len(pairs(split)))]
    both = drawn + [(b, a) for a, b in drawn]
    return [{"question": QUESTION.format(a=a, b=b), "answer": _answer(a, b)} for a, b in both[:count]]


def _answer(a: int, b: int) -> str:
    return f"{max(a, b)} - {min(a, b)} = {abs(a - b)}"


def conversations(split: str, count: int) -> list[dict[str, Any]]:
    """The same questions as chat rows for fine-tuning."""
    return [
        {
            "messages": [
                {"role": "user", "content": row["question"]},
                {"role": "assistant", "content": row["answer"]},
            ]
        }
        for row in differences(split, count)
    ]
