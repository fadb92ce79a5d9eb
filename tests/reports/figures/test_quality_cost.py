"""Broken by a cost divided by another task's, by experts that are not counted, by an interval that is made up."""

from __future__ import annotations

import pytest

from moe_lab.reports.figures.cost import quality_rows, write_quality_cost
from moe_lab.reports.papers.cells import CellTable, TableCell
from moe_lab.reports.papers.experiment import Experiment
from tests.support.stored_results import results_of
from tests.support.views import family_of

TABLE = Experiment(
    name="x",
    title="T",
    source="S",
    scales={},
    metric="headline",
    paper=[],
    rows=["model", "method", "method.n"],
    columns=["task"],
)
PAIRED = {"t": {"acc,none": {"difference": 0.1, "ci95": [0.05, 0.15], "p_mcnemar": 0.001}}}


def cell(
    method: str, tokens: list[int], task: str = "t", n: str = "-", value: float = 0.5, **block
) -> TableCell:
    """A cell with one run per number of tokens."""
    cost = results_of()["moe_lab"]["cost"]
    costs = [cost | {"tokens_in": count} for count in tokens]
    results = [
        results_of(method, value, cost=one, run_id=f"{method}{task}{i}", **block)
        for i, one in enumerate(costs)
    ]
    return TableCell(
        coordinates={"model": "tiny", "method": method, "method.n": n, "task": task},
        run_id="r",
        results=results,
    )


def table_of(*cells: TableCell) -> CellTable:
    return CellTable(TABLE, cells, family_of(TABLE, cells))


def test_work_is_tokens_times_experts_relative_to_the_same_tasks_base():
    roe, dynamic = {"n": 2, "temperatures": [0.1], "cache": "clean"}, {"experts_per_token": 2.0}
    table = table_of(
        cell("base", [1000], task="other"),
        cell("base", [100]),
        cell("roe", [150, 250], n="2", roe=roe),
        cell("top-p", [100], n="1", top_p=dynamic),
        TableCell(coordinates={"model": "tiny", "method": "c3po", "method.n": "-", "task": "t"}, run_id=None),
        cell("roe", [7], task="without base", n="8", roe=roe),
    )
    rows = {row["label"]: row["work"] for row in quality_rows(table) if row["label"] != "base"}
    assert rows == {"roe n=2": 2.0, "top-p": 0.5}, "the model's own number of experts is 4"


def test_a_difference_is_the_paired_one_or_has_no_interval(tmp_path):
    table = table_of(
        cell("base", [100], value=0.4),
        cell("scmoe", [200], paired=PAIRED, scmoe={}),
        cell("roe", [800], value=0.45, n="1", roe={"n": 1, "temperatures": [0.0], "cache": "clean"}),
    )
    base, paired, alone = quality_rows(table)
    assert (base["difference"], base["work"]) == (0.0, 1.0)
    assert (paired["difference"], paired["low"], paired["high"], paired["significant"]) == (
        0.1,
        0.05,
        0.15,
        True,
    )
    assert alone["difference"] == pytest.approx(0.05) and alone["low"] is None and not alone["significant"]
    picture, _ = write_quality_cost(table, tmp_path, "e", "T")
    assert picture.stat().st_size > 5_000
