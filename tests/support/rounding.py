"""Float32 results of the small models that are equal but for the order of their sums
(`moe_lab.results.rounding`).

The bound is 1.1e-5 for one token, three times as much for three. A wrong index, mask or key moves
these numbers by more than 1e-3.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from moe_lab.results import rounding

VOCABULARY = 300
"""Of the small models."""


def bound(expected: Any, tokens: int = 1) -> float:
    """The largest difference that rounding explains, for sums over `tokens` tokens."""
    return rounding.bound(_largest(expected), tokens, VOCABULARY)


def approx(expected: Any, tokens: int = 1) -> Any:
    """`pytest.approx` with that bound: a number, or a list of numbers of one kind."""
    return pytest.approx(expected, abs=bound(expected, tokens))


def assert_close(actual: Any, expected: Any, tokens: int = 1, equal_nan: bool = False) -> None:
    """`torch.testing.assert_close` with that bound."""
    import torch

    atol = bound(expected.detach().nan_to_num(), tokens)
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0, equal_nan=equal_nan)


def _largest(expected: Any) -> float:
    if isinstance(expected, str):
        return 0.0
    if hasattr(expected, "abs"):
        return float(expected.abs().max()) if expected.numel() else 0.0
    if isinstance(expected, dict):
        expected = expected.values()
    if isinstance(expected, Iterable):
        return max(map(_largest, expected), default=0.0)
    return abs(float(expected))
