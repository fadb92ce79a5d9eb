"""Reproducible randomness: generators and split membership keyed by strings."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence


def generator(*key: object) -> random.Random:
    """A generator keyed by its arguments; `random.Random` seeds from the text, never from `hash()`."""
    return random.Random("/".join(map(str, key)))


def share(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def split_of(key: str, shares: Sequence[tuple[str, float]]) -> str:
    """The split of a key, which never changes: splits are disjoint.

    `shares` are (split, fraction) pairs whose fractions sum to 1.
    """
    position = share(key)
    for split, fraction in shares:
        if position < fraction:
            return split
        position -= fraction
    return shares[-1][0]
