"""The fast tier of the tests: `make test` leaves out what is marked slow,
`make test-all` leaves out nothing.

Slow are tests that take a second or more, tests that start processes, and families other than FAST.
"""

from collections.abc import Iterable
from typing import Any

import pytest

FAST = ("olmoe", "gpt_oss", "deepseek")
"""Softmax without renormalization, softmax over the chosen (Mixtral's renormalized weights
are the same numbers), shared experts after a dense layer."""


def by_family(names: Iterable[str]) -> list[Any]:
    """Parameters of a test that varies the family. Where none is in FAST,
    the first is in the fast tier."""
    all_names = list(names)
    fast_names = [name for name in all_names if name in FAST]
    if not fast_names:
        fast_names = all_names[:1]
    return [_parameter(name, name in fast_names) for name in all_names]


def first_fast(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Parameters of an expensive test: the first `count` are fast, the others are slow."""
    return [_parameter(value, number < count) for number, value in enumerate(values)]


def _parameter(value: Any, is_fast: bool) -> Any:
    if is_fast:
        return pytest.param(value)
    return pytest.param(value, marks=pytest.mark.slow)
