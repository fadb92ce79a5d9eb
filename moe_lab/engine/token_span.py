"""Spans of re-routed tokens in a prompt, named as in Table 9 of the C3PO paper."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from moe_lab.errors import ConfigError

_NAME = re.compile(r"(first|middle|last)([1-9]\d*)")


@dataclass(frozen=True)
class TokenSpan:
    """W consecutive tokens at the first, middle or last place of a prompt.

    >>> [TokenSpan(where, 3).start(10) for where in ("first", "middle", "last")]
    [0, 3, 7]
    """

    where: str = "last"
    """first, middle or last"""
    size: int = 1
    """W"""

    def start(self, length: int) -> int:
        """Index of the span's first token in a prompt of `length` tokens. Raises ValueError for a
        shorter prompt."""
        if length < self.size:
            raise ValueError(f"A prompt of {length} tokens has no {self.size} to re-route.")
        last_start = length - self.size
        if self.where == "first":
            return 0
        if self.where == "middle":
            return last_start // 2
        return last_start


def named_tokens(given: str) -> TokenSpan:
    """The span named `last1`, `middle3`, `first2` and the like.

    >>> named_tokens("middle3")
    TokenSpan(where='middle', size=3)

    Raises ConfigError for another name.
    """
    match = _NAME.fullmatch(str(given))
    if not match:
        raise ConfigError(
            f"method.tokens={given}: it names no tokens. Use first, middle or last and a number, "
            "e.g. last1 or middle3."
        )
    return TokenSpan(match[1], int(match[2]))


def check_length(span: TokenSpan, prompt: Sequence[int], text: str) -> None:
    """Raise ConfigError for a prompt (token ids) with fewer tokens than the span."""
    if len(prompt) < span.size:
        raise ConfigError(
            f"method.tokens={span.where}{span.size}: the prompt {text!r:.80} has {len(prompt)} "
            "tokens.\n"
            f"Use at most method.tokens={span.where}{max(1, len(prompt))}."
        )
