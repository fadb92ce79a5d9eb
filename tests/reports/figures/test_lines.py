"""Broken by the default learning rate of the routers at zero."""

from __future__ import annotations

from moe_lab.reports.figures.curves import line_rows, write_lines
from moe_lab.reports.papers.cells import CellTable
from moe_lab.reports.papers.experiment import Experiment
from tests.support.finetuned_cells import KEYS, cell, records


def test_lines_go_up_the_axis_and_the_default_rate_is_that_of_all_else(tmp_path):
    measures = {"Load Balance": "expert.load_balance", "accuracy": "headline"}
    lines = Experiment(
        **KEYS, rows=["method.router_lr"], columns=["model", "measure"], metric=measures, paper=[]
    )
    points = [
        cell(value, metric, model="tiny", measure=name, method__router_lr=rate)
        for rate, value in (("-", 0.6), ("1e-05", 0.4))
        for name, metric in measures.items()
    ]
    rows = records(line_rows(CellTable(lines, points)))
    assert [(row["measure"], row["x"], row["value"]) for row in rows] == [
        ("Load Balance", 1e-05, 3.5),
        ("accuracy", 1e-05, 0.4),
        ("Load Balance", 0.02, 3.5),
        ("accuracy", 0.02, 0.6),
    ]
    assert {row["line"] for row in rows} == {"tiny"}
    assert write_lines(CellTable(lines, points), tmp_path, "f", "T")[0].stat().st_size > 10_000
