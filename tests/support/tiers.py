"""The fast tier of the tests: `make test` leaves out what is marked slow, `make test-all` leaves out nothing.

Slow are tests that take a second or more, tests that start processes, and families other than FAST.
"""

from collections.abc import Iterable
from typing import Any

import pytest

FAST = ("olmoe", "gpt_oss", "deepseek")
"""Softmax without renormalization, softmax over the chosen (Mixtral's renormalized weights are the same numbers), shared
experts after a dense layer."""


def by_family(names: Iterable[str]) -> list[Any]:
    """Parameters of a test that varies the family; one with none of FAST keeps its first in the fast tier."""
    names = list(names)
    fast = [name for name in names if name in FAST] or names[:1]
    return [pytest.param(name, marks=[] if name in fast else [pytest.mark.slow]) for name in names]


def first_fast(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Parameters of a test that costs much: the first `count` are in the fast tier, the others are slow."""
    return [
        pytest.param(value, marks=[] if number < count else [pytest.mark.slow])
        for number, value in enumerate(values)
    ]
