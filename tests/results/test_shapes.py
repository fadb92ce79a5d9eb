"""Types of stored content. Broken by a wrong type that a reader would meet, and by a right one that is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from moe_lab.results.shapes import (
    ANY,
    NUMBER,
    TEXT,
    WHOLE,
    Each,
    lm_eval_misfit,
    misfit,
    or_null,
    results_misfit,
)
from tests.support.stored_results import results_of

SHAPE = {"name": TEXT, "n?": or_null(WHOLE), "list?": [NUMBER], "each?": Each({"x": ANY})}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            {"name": "a", "n": None, "list": [1, 0.5, float("nan")], "each": {"b": {"x": None}}, "more": 1},
            None,
        ),
        ({}, "name is missing"),
        ({"name": 1}, "name is not a text"),
        ({"name": "a", "n": True}, "n is not a whole number"),
        ({"name": "a", "list": [1, 1e301]}, "list[1] is not a number of usual size"),
        ({"name": "a", "list": [1, 10**400]}, "list[1] is not a number of usual size"),
        ({"name": "a", "list": {}}, "list is no list"),
        ({"name": "a", "each": {"b": []}}, "each.b is no mapping"),
        ({"name": "a", "each": {"b": {}}}, "each.b.x is missing"),
        ([], "it is no mapping"),
    ],
)
def test_the_first_misfit_is_named(value: Any, problem: str | None) -> None:
    assert misfit(value, SHAPE) == problem


def changed(**changes: Any) -> dict[str, Any]:
    results = copy.deepcopy(dict(results_of()))
    results["moe_lab"] |= changes
    return results


def test_real_results_are_whole() -> None:
    assert results_misfit(dict(results_of())) is None and lm_eval_misfit({"results": {}}) is None


@pytest.mark.parametrize(
    ("results", "problem"),
    [
        (changed(model={"name": None}), "moe_lab.model.name is not a name"),
        (changed(samples={"t": ["0"]}), "moe_lab.samples.t[0] is not a whole number"),
        (changed(samples={}), "moe_lab.samples has no t"),
        (changed(samples={"t": [0], "u": [0]}), "results has no u"),
        (changed(roe=5), "moe_lab.roe is no mapping"),
        (changed(roe={"temperatures": ["0"]}), "moe_lab.roe.temperatures[0] is not a number of usual size"),
        (changed(other=5), None),
        (changed(baseline={"run_id": 5}), "moe_lab.baseline.run_id is not a name"),
        (changed(intervals={"t": {"acc,none": [0.1]}}), "moe_lab.intervals.t.acc,none is not two limits"),
        (dict(results_of()) | {"results": {"t": {}, "a\nError: b": {}}}, r"a task is called 'a\nError: b'"),
        (
            dict(results_of()) | {"group_subtasks": {"g": ["g"]}},
            "group_subtasks.g holds itself, or too many groups",
        ),
        (
            dict(results_of()) | {"group_subtasks": {f"g{i}": [f"g{i + 1}"] * 99 for i in range(9)}},
            "group_subtasks.g0 holds itself, or too many groups",
        ),
    ],
)
def test_what_readers_would_meet_is_named(results: dict[str, Any], problem: str | None) -> None:
    assert results_misfit(results) == problem
