"""Averages over tasks, and groups of tasks.

Broken by an average over part of the tasks, by an interval that treats all documents as one sample, by a group that
loses its interval, by published numbers put beside the wrong task.
"""

from pathlib import Path
from typing import Any

import pytest

from moe_lab.errors import ConfigError
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment, find_experiments, load_experiment
from moe_lab.results.model import RunResult
from moe_lab.results.scores import scores_of
from moe_lab.results.statistics import interval, interval_of_mean_of_tasks, tango
from tests.support.stored_results import results_of
from tests.support.views import csv_text, markdown

EXPERIMENT = """\
# A table for tests
title: "Table A"
source: "A paper"
scales: {tiny: {}}
rows: [method]
columns: [task]
average: task
paper:
  - {cell: {method: base, task: [a, b, average]}, value: [50.0, 70, 60], unit: percent, place: "Table 1", mark: "(?)"}
"""


def experiment_of(folder: Path, text: str = EXPERIMENT) -> Experiment:
    (folder / "a.yaml").write_text(text)
    return load_experiment("paper/a", folder / "a.yaml")


def cell_of(task: str, value: float | None, **changes: Any) -> TableCell:
    coordinates = {"method": "base", "task": task}
    if value is None:
        return TableCell(coordinates=coordinates, run_id=None, problem="no data")
    results = results_of(method="base", value=value, run_id=f"run-{task}", **changes)
    return TableCell(coordinates=coordinates, run_id=f"run-{task}", results=[results])


def test_the_interval_of_a_mean_follows_from_its_parts():
    """Of equal parts it is narrower by the root of their number; a skewed part leaves it skewed."""
    low, high = interval_of_mean_of_tasks([0.5] * 4, [(0.4, 0.6)] * 4)
    assert (low, high) == pytest.approx((0.45, 0.55))
    low, high = interval_of_mean_of_tasks([2.0] * 4, [(2.2, 2.4)] * 4)
    assert (low, high) == pytest.approx((2.25, 2.35)), "of intervals that correct a bias, as of any others"
    low, high = interval_of_mean_of_tasks([0.9, 0.5], [(0.6, 1.0), (0.5, 0.5)])
    assert (low, high) == pytest.approx((0.55, 0.75))


def test_an_axis_that_is_not_shown_leaves_the_average_alone(tmp_path):
    experiment = experiment_of(tmp_path, EXPERIMENT.replace("columns: [task]", "columns: []"))
    cells = [cell_of("a", 0.4), cell_of("b", 0.6)]
    text = markdown(experiment, "tiny", cells)
    header, _, line = [line for line in text.splitlines() if line.startswith("|")]
    assert header == "| method | documents | average | average, published |"
    assert line.startswith("| base | 8 | 0.5000 [")
    assert [row.split(",")[1] for row in csv_text(experiment, cells).splitlines()] == [
        "task", "a", "b", "average",
    ]  # fmt: skip


def test_lists_of_published_numbers_must_match(tmp_path):
    with pytest.raises(ConfigError, match="lists 3 names"):
        experiment_of(tmp_path, EXPERIMENT.replace("[50.0, 70, 60]", "[50.0, 70]"))


def group_of(score: float) -> RunResult:
    """Two subjects: 2 of 4 right, one more than base, and 9 of 12, five more and two others less."""
    flips = {"x": (1, 0), "y": (5, 2)}
    paired = {
        name: {"acc,none": {"difference": 0.25, "ci95": [0.0, 0.5], "to_right": won, "to_wrong": lost}}
        for name, (won, lost) in flips.items()
    }
    results = results_of(
        method="roe",
        task={"name": "g", "tasks": ["x", "y"], "metric": "acc,none"},
        samples={"x": list(range(4)), "y": list(range(12))},
        intervals={name: {"acc,none": [0.3, 0.7]} for name in "xy"},
        paired=paired,
        baseline={"run_id": "b", "results": {"x": {"acc,none": 0.25}, "y": {"acc,none": 0.5}}},
    )
    scores = {
        name: {"acc,none": value} for name, value in (("h", 0.5), ("g", score), ("x", 0.5), ("y", 0.75))
    }
    groups = {"groups": {"h": {}, "g": {}}, "group_subtasks": {"g": ["h", "y"], "h": ["x"]}}
    return RunResult(results.content | {"results": scores} | groups)


def test_a_group_is_one_sample_of_its_documents():
    rows = scores_of(group_of(11 / 16))
    assert [row.task for row in rows] == ["g", "h", "x", "y"], "what was asked for stands first"
    row = rows[0]
    assert (row.value, row.n, row.changed) == (11 / 16, 16, (6, 2))
    assert row.interval == interval([1] * 11 + [0] * 5)
    assert (row.difference, row.baseline) == (0.25, 7 / 16)
    assert (row.p, row.test) == (pytest.approx(0.289, abs=1e-3), "McNemar")
    assert row.difference_interval == tango(6, 2, 16)


def test_a_group_that_counts_its_tasks_alike_has_no_interval():
    row = scores_of(group_of(0.625))[0]
    assert (row.value, row.interval, row.difference) == (0.625, None, None)


def published_lines(experiment: Experiment) -> dict[tuple[tuple[str, str], ...], dict[str, float]]:
    """Numbers of the paper by task, for each line of its table; lines whose own average is marked as wrong are not."""
    lines: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for each in experiment.paper:
        if experiment.average in each.cell and "average" not in (each.mark or ""):
            where = tuple(pair for pair in each.cell.items() if pair[0] != experiment.average)
            lines.setdefault(where, {})[each.cell[experiment.average]] = each.value
    return lines


def test_published_averages_are_those_of_the_published_tasks():
    """Broken by a number that was typed wrong, and by one in another task's place."""
    checked = 0
    for name in ("c3po/table1", "c3po/table2", "c3po/figure1"):
        for where, told in published_lines(find_experiments(name)[0]).items():
            average = told.pop("average")
            assert average == pytest.approx(sum(told.values()) / 6, abs=0.055), where
            checked += len(told) == 6
    assert checked == 15 + 19 + 7


@pytest.mark.parametrize(
    "averaged, of, lines",
    [("table3", "table9", 7), ("table4", "table10", 7), ("table5", "table11", 6), ("table6", "table14", 4)],
)
def test_tables_of_averages_are_those_of_the_long_tables(averaged, of, lines):
    """The appendix has the benchmarks' numbers, the text their means; Table 14 has no base row."""
    long = published_lines(find_experiments(f"c3po/{of}")[0])
    checked = 0
    for where, told in published_lines(find_experiments(f"c3po/{averaged}")[0]).items():
        if where in long:
            checked += 1
            assert told["average"] == pytest.approx(sum(long[where].values()) / 6, abs=0.006)
    assert checked == lines
