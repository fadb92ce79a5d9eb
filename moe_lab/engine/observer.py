"""Who sees what the engine reads: each forward pass of the plain model before it, each request's tokens after it.

A token and all that stands before it have one 64-bit name, whatever the batch, the order, the padding and what was
shared: causal models route equal names alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from moe_lab.engine.hf import Request
    from moe_lab.engine.tokens import Tokens
    from moe_lab.routing import Router, Routing

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = tuple(map(np.uint64, (30, 27, 31)))


class Observer:
    """Sees what a plain model reads; this one looks away."""

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        """As a routing policy; this one leaves every decision as it is."""
        return None

    def expect(self, tokens: Tokens) -> None:
        """Called before each forward pass."""

    def read(self, kind: str, request: Request, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Called when a request is answered: the token ids that were read for it.

        A text in several windows is several calls. The last token of an answer is predicted and not read.
        """


def token_names(ids: Sequence[int] | np.ndarray, first: int = 0) -> np.ndarray:
    """int64 [T]: a hash (SplitMix64) of each token and its position, which are `first`, `first + 1`, ..."""
    positions = np.arange(first, first + len(ids), dtype=np.uint64)
    return token_names_at(ids, positions)


def token_names_at(ids: Sequence[int] | np.ndarray, positions: np.ndarray) -> np.ndarray:
    """int64 [T]: a hash of each token and its position."""
    z = _mixed(np.asarray(ids, dtype=np.uint64) + _GOLDEN) ^ positions.astype(np.uint64)
    return _mixed(z + _GOLDEN).view(np.int64)


def prefix_names(ids: Sequence[int]) -> np.ndarray:
    """int64 [T]: the name of each token together with all before it, the sum of their hashes."""
    return np.cumsum(token_names(ids))


def _mixed(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> _SHIFTS[0])) * _MIX_1
    z = (z ^ (z >> _SHIFTS[1])) * _MIX_2
    return z ^ (z >> _SHIFTS[2])


@contextmanager
def observed(lm: Any, observer: Observer) -> Iterator[None]:
    """Inside the context `observer`, a routing policy as well, sees all that an `EngineLM` reads and routes.

    Raises ConfigError for a model that does not run as rows.
    """
    from moe_lab.routing import routed

    lm.observe(observer)
    try:
        with routed(lm.model, observer):
            yield
    finally:
        lm.observe(Observer())
