"""How far two float32 results may lie apart that are equal but for the order of their sums.

Each float32 operation rounds by up to EPS / 2 of its result, in another direction on another machine, with another number
of threads or another batch. A small model's forward pass is about 256 such operations deep (four layers of norms,
projections, attention, router and experts); errors of random sign add up to about sqrt(256) = 16 of them. What is rounded is of the size
of a token's log-probability, log(VOCAB) where nothing is known, and the error of a sum over tokens grows with what is
summed: 1.1e-5 for one token, three times as much for three. A wrong index, mask or key moves these numbers by more than
1e-3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

EPS = 2.0**-23
ROUNDINGS = 16
SIZE = math.log(300)
"""Of the log-probability of one of the small models' 300 tokens."""


def bound(expected: Any, tokens: int = 1) -> float:
    """The largest difference that rounding explains, for numbers that are sums over `tokens` tokens."""
    return ROUNDINGS * EPS * max(tokens * SIZE, _largest(expected))


def approx(expected: Any, tokens: int = 1) -> Any:
    """`pytest.approx` with that bound: a number, or a list of numbers of one kind."""
    return pytest.approx(expected, abs=bound(expected, tokens))


def assert_close(found: Any, expected: Any, tokens: int = 1, equal_nan: bool = False) -> None:
    """`torch.testing.assert_close` with that bound."""
    import torch

    atol = bound(expected.detach().nan_to_num(), tokens)
    torch.testing.assert_close(found, expected, atol=atol, rtol=0, equal_nan=equal_nan)


def _largest(expected: Any) -> float:
    if isinstance(expected, str):
        return 0.0
    if hasattr(expected, "abs"):
        return float(expected.abs().max()) if expected.numel() else 0.0
    if isinstance(expected, dict):
        expected = expected.values()
    return (
        max(map(_largest, expected), default=0.0) if isinstance(expected, Iterable) else abs(float(expected))
    )
