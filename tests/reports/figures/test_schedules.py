"""Figures of fine-tuned models: the numbers behind them.

Broken by: a point in another schedule's line or panel, the average among the tasks where it stands alone, the routers'
default learning rate at zero.
"""

from __future__ import annotations

import pytest

from moe_lab.reports.figures.curves import schedule_label, schedule_rows, write_lines, write_schedules
from moe_lab.reports.papers.cells import CellTable, TableCell
from moe_lab.reports.papers.experiment import Experiment
from tests.support.finetuned_cells import KEYS, bars, cell, cells, records


def test_each_column_is_a_panel_with_the_average_last(tmp_path):
    rows = records(schedule_rows(CellTable(bars(), cells())))
    assert [row["panel"] for row in rows] == ["arc", "piqa"] * 3 + ["average"] * 3
    found = {(row["panel"], row["schedule"]): row for row in rows}
    assert found["piqa", "N→R"]["value"] == pytest.approx(0.7)
    assert found["average", "E→E"]["value"] == pytest.approx(0.8)
    assert found["average", "N→R"]["published"] == 0.65 and found["arc", "N→R"]["published"] is None
    png, _ = write_schedules(CellTable(bars(), cells()), tmp_path, "f", "T")
    assert png.stat().st_size > 10_000


def test_an_average_without_its_axis_stands_alone():
    told = [replaced(one, model="tiny") for one in cells()]
    rows = records(schedule_rows(CellTable(bars(columns=["model"]), told)))
    assert [(row["panel"], row["schedule"]) for row in rows] == [
        ("tiny", "base"),
        ("tiny", "N→R"),
        ("tiny", "E→E"),
    ]


def replaced(one: TableCell, **coordinates) -> TableCell:
    return cell(
        one.score().value, **{k.replace(".", "__"): v for k, v in (one.coordinates | coordinates).items()}
    )


@pytest.mark.parametrize(
    ("schedule", "rate", "label"),
    [
        ("none-router", "-", "N→R"),
        ("experts", "-", "E→E"),
        ("none", "1e-05", "N→N, router 1e-05"),
        ("-", "-", "base"),
    ],
)
def test_schedules_bear_the_papers_names(schedule, rate, label):
    assert schedule_label({"method.schedule": schedule, "method.router_lr": rate}) == label


def test_nothing_measured_draws_nothing(tmp_path):
    missing = TableCell(coordinates={"task": "a", "method.schedule": "none", "method": "x"}, run_id=None)
    assert write_schedules(CellTable(bars(average=None), [missing]), tmp_path, "f", "T") == []
    lines = Experiment(**KEYS, rows=["method.schedule"], columns=["task"], metric="headline", paper=[])
    assert write_lines(CellTable(lines, [missing]), tmp_path, "g", "T") == []
