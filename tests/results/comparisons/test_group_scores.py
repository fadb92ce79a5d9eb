"""Breaks if a group is compared as something else than all its documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moe_lab.results.comparisons.comparison import compare
from tests.support.lm_eval_logs import evaluation, samples_of

TASKS = {"group_subtasks": {"g": ["g_inner", "u"], "g_inner": ["t"]}}
MINE = {"t": samples_of(acc=[1.0, 0.0, 0.0, 1.0]), "u": samples_of(acc=[1.0, 0.0])}
THEIRS = {"t": samples_of(acc=[1.0, 1.0, 1.0, 0.0]), "u": samples_of(acc=[1.0, 1.0])}


def compared(tmp_path: Path, mine: float, theirs: float, **more: Any) -> Any:
    def score(value: float) -> dict[str, Any]:
        return {"scores": {"g": {"acc,none": value}}, "groups": {"g": {"acc,none": value}}, **TASKS, **more}

    a, b = evaluation(tmp_path, "a", MINE, **score(mine)), evaluation(tmp_path, "b", THEIRS, **score(theirs))
    return compare([a, b])


def test_a_mean_over_documents_is_one_sample_of_them(tmp_path: Path) -> None:
    found = compared(tmp_path, 3 / 6, 5 / 6)
    assert [score.task for score in found.scores] == ["t", "u", "g"]
    group = found.scores[-1]
    assert (group.n, group.baseline, group.value) == (6, 0.5, 5 / 6)
    assert group.flips == (3, 1) and group.comparison not in found.changed


def test_tasks_without_the_filter_are_no_part_of_the_group(tmp_path: Path) -> None:
    scores = {"g": {"acc,again": 1.0}}
    logs = [{"t": lines["t"], "u": samples_of("again", acc=[1.0, 1.0])} for lines in (MINE, THEIRS)]
    a, b = (
        evaluation(tmp_path, key, log, scores=scores, groups=scores, **TASKS)
        for key, log in zip("ab", logs, strict=True)
    )
    found = compare([a, b])
    assert [(score.task, score.metric, score.n) for score in found.scores[2:]] == [("g", "acc,again", 2)]
    assert not found.notes


def test_a_mean_of_tasks_is_left_out_and_said(tmp_path: Path) -> None:
    found = compared(tmp_path, 0.5, (0.75 + 1) / 2)
    assert [score.task for score in found.scores] == ["t", "u"]
    assert "Not compared: acc,none of the group g" in found.notes[-1]


def test_where_lower_is_better_the_difference_keeps_its_sign(tmp_path: Path) -> None:
    group = compared(
        tmp_path, 3 / 6, 5 / 6, higher_is_better={"t": {"acc": False}, "u": {"acc": False}}
    ).scores[-1]
    assert (group.task, group.baseline, group.value) == ("g", 0.5, 5 / 6)
    assert group.difference == pytest.approx(2 / 6) and group.flips == (1, 3)
    low, high = group.difference_interval
    assert low < group.difference < high
