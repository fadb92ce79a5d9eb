"""Figures of fine-tuned models: the numbers behind them.

Broken by: a point in another schedule's line or panel, the average among the tasks where it stands alone, the routers'
default learning rate at zero.
"""

from __future__ import annotations

import csv
import json
from itertools import product
from types import SimpleNamespace

import pytest
from pandas import DataFrame

from moe_lab.reports.figures.epochs import write_epochs
from moe_lab.reports.figures.lines import line_rows, write_lines
from moe_lab.reports.figures.schedules import schedule_label, schedule_rows, write_schedules
from moe_lab.reports.papers.cell import TableCell
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.spec import Experiment, Published, Scale
from tests.support.stored_results import EXPERT_METRICS, expert_results

KEYS = {"name": "x", "title": "X", "source": "", "scales": {"tiny": Scale()}}


def cell(value: float = 0.6, metric: str = "headline", **coordinates) -> TableCell:
    told = expert_results(intervals={"t": {"acc,none": [value - 0.1, value + 0.1]}})
    told["results"]["t"]["acc,none"] = value
    config = SimpleNamespace(method=SimpleNamespace(learning_rate=0.02))
    found = {"run_id": "r", "results": [told], "expert": [EXPERT_METRICS], "config": config}
    return TableCell(
        coordinates={key.replace("__", "."): v for key, v in coordinates.items()}, metric=metric, **found
    )


def bars(**more) -> Experiment:
    paper = [
        Published(
            cell={"method.schedule": "none-router", "task": "average"}, value=65.0, unit="percent", place="T"
        )
    ]
    told = {
        "rows": ["method", "method.schedule"],
        "columns": ["task"],
        "metric": "headline",
        "average": "task",
    }
    return Experiment(**KEYS, paper=paper, **(told | more))


def records(frame: DataFrame) -> list[dict]:
    return frame.to_dict("records")


def cells() -> list[TableCell]:
    both = [("base", "-", 0.1), ("finetune-freeze", "none-router", 0.5), ("finetune-freeze", "experts", 0.7)]
    return [
        cell(value + more, method=method, method__schedule=schedule, task=task)
        for method, schedule, value in both
        for task, more in (("arc", 0.0), ("piqa", 0.2))
    ]


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


def test_trainings_are_drawn_once_whatever_is_shown_of_their_runs(tmp_path):
    """Broken by a panel per metric, and by another training's measurements."""
    line = {"load_balance": {"value": 3.0, "ci95": [2.9, 3.1]}, "collaboration": {"value": 2.0, "ci95": None}}
    line |= {
        "capacity": {"least": {"value": 0.1, "ci95": None}},
        "specialization": {"value": 0.4, "ci95": None},
    }
    lines = [json.dumps({"step": step, "epoch": step / 2, **line}) for step in (0, 2)]
    (tmp_path / "models" / "one").mkdir(parents=True)
    (tmp_path / "models" / "one" / "expert_metrics.jsonl").write_text("\n".join(lines) + "\n")
    shown = []
    for name, measure in product(("one", "two"), ("Load Balance", "Capacity")):
        told = expert_results(finetune_freeze={"model": name})
        folder = tmp_path / "runs" / name
        coordinates = {"method.schedule": name, "measure": measure}
        shown.append(TableCell(coordinates=coordinates, run_id="r", results=[told], folder=folder))
    png, table = write_epochs(CellTable(bars(), shown), tmp_path, "f", "T")
    rows = list(csv.DictReader(table.open()))
    assert [(row["training"], row["epoch"], row["load_balance_low"]) for row in rows] == [
        ("one", "0.0", "2.9"),
        ("one", "1.0", "2.9"),
    ]
    assert (
        png.stat().st_size > 10_000 and write_epochs(CellTable(bars(), shown[2:]), tmp_path, "g", "T") == []
    )
