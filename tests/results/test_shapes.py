"""Types of stored content. Broken by a wrong type that a reader would meet, and by a right one that is refused."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest

from moe_lab.results.stored_files import LmEvalResults, Results, misfit, typed
from tests.support.stored_results import results_of


def changed(**changes: Any) -> dict[str, Any]:
    results = copy.deepcopy(dict(results_of()))
    results["moe_lab"] |= changes
    return results


def test_real_results_are_whole():
    assert misfit(dict(results_of()), Results) is None and misfit({"results": {}}, LmEvalResults) is None


@pytest.mark.parametrize(
    ("results", "place"),
    [
        ([], "it"),
        (changed(model={"name": None}), "moe_lab.model.name"),
        (changed(samples={"t": ["0"]}), "moe_lab.samples.t.0"),
        (changed(baseline={"run_id": 5}), "moe_lab.baseline.run_id"),
        (changed(intervals={"t": {"acc,none": [0.1]}}), "moe_lab.intervals.t.acc,none"),
        (dict(results_of()) | {"group_subtasks": {"g": "t"}}, "group_subtasks.g"),
        (changed(other=5), None),
        (changed(intervals={"t": {"acc,none": [0.1, float("nan")]}}), None),
    ],
)
def test_what_readers_would_meet_is_named(results, place):
    problem = misfit(results, Results)
    assert problem is None if place is None else str(problem).startswith(f"{place}: ")


@dataclass(frozen=True)
class Part:
    name: str
    limits: tuple[float, float] | None = None
    length: int = field(init=False, default=0)


@dataclass(frozen=True)
class Whole:
    parts: list[Part]
    by_name: dict[str, Part | None]
    marks: tuple[str, ...] = ()


def test_what_a_dataclass_holds_is_read_with_it():
    part = {"name": "a", "limits": [0, 0.5], "length": 3, "unknown": 1}
    content = {"parts": [part], "by_name": {"b": {"name": "b"}, "c": None}, "marks": ["x", "y"], "more": None}
    found = typed(Whole, content)
    assert found == Whole([Part("a", (0, 0.5))], {"b": Part("b"), "c": None}, ("x", "y"))


@pytest.mark.parametrize("part", [{"name": 1}, {}, {"name": "a", "limits": [0, 1, 2]}, []])
def test_another_type_is_refused(part):
    with pytest.raises(ValueError, match=r"parts\.0"):
        typed(Whole, {"parts": [part], "by_name": {}})
