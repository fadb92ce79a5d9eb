"""Which tokens of a prompt are re-routed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenSpan:
    """W consecutive tokens at one place of every prompt.

    >>> [TokenSpan(where, 3).start(10) for where in ("first", "middle", "last")]
    [0, 3, 7]
    """

    where: str = "last"
    """first, middle or last"""
    size: int = 1
    """W"""

    def start(self, length: int) -> int:
        """Index of the first of them in a prompt of `length` tokens. Raises ValueError for a prompt without so many."""
        if length < self.size:
            raise ValueError(f"A prompt of {length} tokens has no {self.size} to re-route.")
        return {"first": 0, "middle": (length - self.size) // 2, "last": length - self.size}[self.where]
