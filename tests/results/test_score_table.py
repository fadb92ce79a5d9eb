"""Breaks if the average over tasks has other numbers than its tasks have, or hides that one is missing."""

from __future__ import annotations

import pytest

from moe_lab.results.score_table import task_mean
from moe_lab.results.scores import Score


def score(task: str, value: float | None, **more: float | tuple[float, float]) -> Score:
    return Score(
        model="m", method="roe", task=task, metric="acc,none", run_id=f"run of {task}", value=value, **more
    )


def test_the_average_of_one_task_has_its_numbers():
    one = score(
        "a", 0.5, n=10, stderr=0.1, interval=(0.3, 0.7), difference=0.1, difference_interval=(-0.1, 0.3)
    )
    mean = task_mean([one])
    assert mean is not None and (mean.task, mean.run_id, mean.n) == ("average", "run of a", 10)
    assert (mean.value, mean.stderr, mean.difference) == pytest.approx((0.5, 0.1, 0.1))
    assert mean.interval == pytest.approx((0.3, 0.7)) and mean.difference_interval == pytest.approx(
        (-0.1, 0.3)
    )


def test_tasks_have_equal_weight_in_their_average():
    mean = task_mean([score("a", 0.5, n=10, stderr=0.3), score("b", 0.75, n=90, stderr=0.4)])
    assert mean is not None and (mean.value, mean.n, mean.run_id) == (0.625, 100, "run of a run of b")
    assert mean.stderr == pytest.approx(0.25) and mean.difference is None and mean.interval is None


@pytest.mark.parametrize("others", ([None], [score("b", None)], []), ids=("no run", "no score", "no tasks"))
def test_an_average_without_one_of_its_tasks_does_not_exist(others):
    assert task_mean([score("a", 0.5), *others] if others else []) is None
