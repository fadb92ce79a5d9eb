"""Which tokens of a prompt C3PO re-routes, by the names of the paper's Table 9."""

from __future__ import annotations

import re
from collections.abc import Sequence

from moe_lab.engine.token_spans import TokenSpan
from moe_lab.errors import ConfigError

_NAME = re.compile(r"(first|middle|last)([1-9]\d*)")


def named_tokens(given: str) -> TokenSpan:
    """The tokens of `last1`, `middle3`, `first2`.

    >>> named_tokens("middle3")
    TokenSpan(where='middle', size=3)

    Raises ConfigError for another name.
    """
    match = _NAME.fullmatch(str(given))
    if not match:
        raise ConfigError(
            f"method.tokens={given}: it names no tokens. Use first, middle or last and a number, e.g. last1 or middle3."
        )
    return TokenSpan(match[1], int(match[2]))


def check_length(span: TokenSpan, prompt: Sequence[int], text: str) -> None:
    """Raise ConfigError where a prompt (its token ids) has fewer tokens than are to be re-routed."""
    if len(prompt) < span.size:
        raise ConfigError(
            f"method.tokens={span.where}{span.size}: the prompt {text!r:.80} has {len(prompt)} tokens.\n"
            f"Use at most method.tokens={span.where}{max(1, len(prompt))}."
        )
