"""Breaks if a column of several metrics is said to show one of them."""

from __future__ import annotations

from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment, Scale
from moe_lab.results.model import RunResult
from tests.support.stored_results import results_of
from tests.support.views import markdown

TABLE = Experiment(
    name="x",
    title="X",
    source="",
    scales={"paper": Scale()},
    rows=["task"],
    columns=["method"],
    metric="headline",
    paper=[],
)


def cell(task: str, metric: str) -> TableCell:
    told = results_of(task={"name": task, "tasks": [task], "metric": metric}, samples={task: [0, 1]})
    told = RunResult(dict(told) | {"results": {task: {metric: 0.5}}})
    return TableCell(coordinates={"task": task, "method": "base"}, run_id=task, results=[told])


def test_metrics_of_a_column_are_listed_with_their_tasks():
    cells = [cell("a", "acc,none"), cell("b", "exact_match,strict-match"), cell("c", "acc,none")]
    assert "- base: acc,none (a, c); exact_match,strict-match (b)" in markdown(TABLE, "paper", cells)
    assert "- base: acc,none\n" in markdown(TABLE, "paper", [cells[0], cells[2]])
