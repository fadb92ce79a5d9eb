"""Breaks if the numbers of a group are not those of all its documents together."""

from __future__ import annotations

from typing import Any

import pytest

from moe_lab.results.model import RunResult
from moe_lab.results.scores import scores_of
from moe_lab.results.significance import paired


def test_the_documents_of_a_group_are_one_sample():
    """4 of 5 and 1 of 3 documents right, 2 of 5 and 2 of 3 before: three became right, two wrong."""
    mine = {"a": [1.0, 1, 1, 1, 0], "b": [1.0, 0, 0]}
    base = {"a": [0.0, 0, 1, 1, 0], "b": [0.0, 1, 1]}
    score = {"g": 5 / 8, "a": 4 / 5, "b": 1 / 3}
    block: dict[str, Any] = {
        "run_id": "r",
        "model": {"name": "m", "identified_by": "content", "commit": None},
        "method": {"name": "roe", "config": {"name": "roe"}},
        "task": {"name": "g", "tasks": ["a", "b"], "metric": "acc,none"},
        "samples": {task: list(range(len(values))) for task, values in mine.items()},
        "paired": {task: {"acc,none": paired(mine[task], base[task]).to_json()} for task in mine},
        "baseline": {"run_id": "b", "results": {"a": {"acc,none": 2 / 5}, "b": {"acc,none": 2 / 3}}},
    }
    content = {
        "results": {task: {"acc,none": value} for task, value in score.items()},
        "groups": {"g": {}},
        "group_subtasks": {"g": ["a", "b"], "a": [], "b": []},
        "moe_lab": block,
    }
    [whole] = [one for one in scores_of(RunResult(content)) if one.task == "g"]
    together = paired(mine["a"] + mine["b"], base["a"] + base["b"])
    assert (whole.n, whole.value, whole.flips) == (8, 5 / 8, (3, 2))
    assert whole.baseline == pytest.approx(4 / 8) and whole.difference == pytest.approx(together.difference)
    assert whole.p_mcnemar == together.p_mcnemar and whole.p_randomization is None
    assert whole.difference_interval == together.interval
