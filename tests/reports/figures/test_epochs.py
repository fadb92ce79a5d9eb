"""Broken by a panel per metric, and by another training's measurements."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from itertools import product

from moe_lab.reports.figures.curves import write_epochs
from moe_lab.reports.papers.cells import CellTable, TableCell
from tests.support.finetuned_cells import bars
from tests.support.stored_results import expert_results


def test_trainings_are_drawn_once_whatever_is_shown_of_their_runs(tmp_path):
    """Broken by a panel per metric, and by another training's measurements."""
    line = {"load_balance": {"value": 3.0, "ci95": [2.9, 3.1]}, "collaboration": {"value": 2.0, "ci95": None}}
    line |= {
        "capacity": {"least": {"value": 0.1, "ci95": None}, "most": {"value": 0.3, "ci95": None}},
        "specialization": {"value": 0.4, "ci95": None},
    }
    lines = [json.dumps({"step": step, "epoch": step / 2, **line}) for step in (0, 2)]
    (tmp_path / "models" / "one").mkdir(parents=True)
    (tmp_path / "models" / "one" / "expert_metrics.jsonl").write_text("\n".join(lines) + "\n")
    shown = []
    for name, measure in product(("one", "two"), ("Load Balance", "Capacity")):
        told = replace(
            expert_results(finetune_freeze={"model": name, "training": {}}), folder=tmp_path / "runs" / name
        )
        coordinates = {"method.schedule": name, "measure": measure}
        shown.append(TableCell(coordinates=coordinates, run_id="r", results=[told]))
    png, table = write_epochs(CellTable(bars(), shown), tmp_path, "f", "T")
    rows = list(csv.DictReader(table.open()))
    assert {(row["capacity"], row["capacity_most"]) for row in rows} == {("0.1", "0.3")}, "both readings"
    assert [(row["training"], row["epoch"], row["load_balance_low"]) for row in rows] == [
        ("one", "0.0", "2.9"),
        ("one", "1.0", "2.9"),
    ]
    assert (
        png.stat().st_size > 10_000 and write_epochs(CellTable(bars(), shown[2:]), tmp_path, "g", "T") == []
    )
