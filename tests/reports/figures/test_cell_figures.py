"""Figures of an experiment's cells: the numbers behind them.

Broken by a cost divided by the wrong thing, by expert work that leaves out a factor, by a missing meter shown as 0.
"""

from __future__ import annotations

import csv
from typing import Any

import pytest

from moe_lab.reports.figures.accuracy import write_accuracy
from moe_lab.reports.figures.control import control_rows, write_control
from moe_lab.reports.figures.equivalent import write_equivalent
from moe_lab.reports.figures.overhead import overhead_rows, write_overhead
from moe_lab.reports.papers.cell import TableCell
from tests.support.stored_results import cell_table, results_of


def cell_of(**changes: Any) -> TableCell:
    return TableCell(coordinates={}, run_id="r", results=[results_of(**changes)])


def overhead_cell(n: int, seconds: float, *, temperature: float = 0.0, cache: str = "clean", **cost: Any):
    blank = results_of()["moe_lab"]["cost"]
    roe = {"n": n, "temperatures": [0.0, temperature], "cache": cache}
    return cell_of(n=n, roe=roe, cost=blank | {"wall_seconds": seconds} | cost)


def test_overhead_is_relative_to_one_row():
    rows = overhead_rows(
        [
            overhead_cell(64, 8.0, temperature=0.2, tokens_out=200),
            overhead_cell(64, 3.0, peak_working_bytes=2 * 10**6),
            overhead_cell(1, 2.0),
            overhead_cell(8, 2.5, cache="none"),
            cell_of(cost=results_of()["moe_lab"]["cost"] | {"tokens_out": 0}),
            TableCell(coordinates={}, run_id=None, problem="no data"),
        ]
    )
    told = [(row["cache"], row["temperature"], row["n"], row["relative_seconds_per_token"]) for row in rows]
    assert told == [
        ("clean", "0", 1, 1.0),
        ("clean", "0", 64, 1.5),
        ("none", "0", 8, 1.25),
        ("clean", "tuned", 64, 2.0),
    ]
    assert rows[1]["relative_memory_bytes"] == 5 / 4, "weights and working memory, not the process"
    assert rows[1]["relative_tokens_per_second"] == pytest.approx(2 / 3)
    assert rows[0]["watts"] is None and rows[0]["relative_watts"] is None


def test_on_a_gpu_memory_is_the_devices_peak_and_power_is_energy_over_time():
    gpu = {"device": "cuda:0", "energy_joules": 300.0}
    rows = overhead_rows(
        [overhead_cell(1, 1.0, **gpu), overhead_cell(8, 1.2, **gpu | {"energy_joules": 720.0})]
    )
    assert [row["watts"] for row in rows] == [300.0, pytest.approx(600.0)]
    assert rows[1]["relative_watts"] == pytest.approx(2.0)
    assert rows[0]["memory_bytes"] == 10**9


def test_without_one_row_nothing_is_relative():
    assert overhead_rows([overhead_cell(8, 1.0)])[0]["relative_seconds_per_token"] is None


def test_expert_work_is_rows_times_experts():
    base = cell_of(method="base", model={"name": "tiny", "top_k": 8}, value=0.4)
    rows = control_rows(cell_table(cell_of(n=2), base, cell_of(n=4)))
    columns = rows[["method", "rows", "experts_per_token", "expert_work"]]
    assert list(columns.itertuples(index=False, name=None)) == [
        ("base", 1, 8, 8),
        ("roe", 2, 4, 8),
        ("roe", 4, 4, 16),
    ]


EQUIVALENT = {"model": "m", "device": "cpu", "task": "t", "documents": 5, "new_tokens": 128, "n": 2}
EQUIVALENT |= {"layers": 8, "equivalent_layers": 9}
EQUIVALENT |= {"size_ratio": 1.1, "size_ratio_low": 1.0, "size_ratio_high": 1.2}
EQUIVALENT |= {
    f"{name}_{each}": 1.0
    for name in ("base", "roe", "equivalent")
    for each in ("milliseconds_per_token", "mebibytes")
}


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: write_accuracy(cell_table(cell_of(), cell_of(method="base")), folder, "f", "T"),
        lambda folder: write_control(cell_table(cell_of(), cell_of(method="base")), folder, "f", "T"),
        lambda folder: write_overhead(
            cell_table(overhead_cell(1, 1.0), overhead_cell(8, 9.0)), folder, "f", "T"
        ),
        lambda folder: write_equivalent([EQUIVALENT, EQUIVALENT | {"n": 4}], folder, "f", "T"),
    ],
    ids=["accuracy", "control", "overhead", "equivalent"],
)
def test_each_kind_leaves_a_picture_and_its_numbers(write, tmp_path):
    png, table = write(tmp_path)
    assert png.read_bytes()[:4] == b"\x89PNG" and (png.name, table.name) == ("f.png", "f.csv")
    with table.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 2


def test_nothing_to_show_is_no_picture(tmp_path):
    missing = cell_table(TableCell(coordinates={}, run_id=None, problem="no data"))
    assert write_accuracy(missing, tmp_path, "f", "T") == []
    assert write_control(missing, tmp_path, "f", "T") == []
    assert write_overhead(missing, tmp_path, "f", "T") == []
    assert list(tmp_path.iterdir()) == []
