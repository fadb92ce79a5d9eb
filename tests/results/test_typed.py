"""`typed`. Broken by a value of another type that passes, and by a key that is left out without a word."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from moe_lab.results.measured import Value
from moe_lab.results.shapes import typed


@dataclass(frozen=True)
class Part:
    name: str
    limits: tuple[float, float] | None = None
    length: int = field(init=False, default=0)


@dataclass(frozen=True)
class Whole:
    parts: list[Part]
    by_name: dict[str, Part | None]
    measured: Value | None = None
    marks: tuple[str, ...] = ()
    anything: Any = None


def test_what_a_dataclass_holds_is_read_with_it():
    part = {"name": "a", "limits": [0, 0.5], "length": 3, "unknown": 1}
    content = {"parts": [part], "by_name": {"b": {"name": "b"}, "c": None}, "marks": ["x", "y"]}
    found = typed(Whole, content | {"measured": {"value": 0.5, "ci95": [0.25, 0.75]}, "anything": [None]})
    assert found.parts == [Part("a", (0, 0.5))] and found.by_name == {"b": Part("b"), "c": None}
    assert (
        found.measured == Value(0.5, (0.25, 0.75)) and found.marks == ("x", "y") and found.anything == [None]
    )


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"name": 1}, "1 is no str"),
        ({}, "name is missing"),
        ({"name": "a", "limits": [0, 1, 2]}, "is no tuple"),
        ({"name": "a", "limits": ["0", 1]}, "'0' is no float"),
        ([], "is no Part"),
    ],
)
def test_another_type_is_named(part, problem):
    with pytest.raises(ValueError, match=problem):
        typed(Whole, {"parts": [part], "by_name": {}})
