"""Figures of an experiment's cells: the numbers behind them.

Broken by a cost divided by the wrong thing, by expert work that leaves out a factor, by a missing meter shown as 0.
"""

from __future__ import annotations

import csv

import pytest

from moe_lab.reports.figures.comparisons import write_accuracy, write_control
from moe_lab.reports.figures.cost import write_equivalent, write_overhead
from moe_lab.reports.papers.cells import TableCell
from tests.support.stored_results import cell_of, cell_table, overhead_cell

EQUIVALENT = {"model": "m", "device": "cpu", "task": "t", "documents": 5, "new_tokens": 128, "n": 2}
EQUIVALENT |= {"layers": 8, "equivalent_layers": 9}
EQUIVALENT |= {
    "size_ratio": 1.1,
    "size_ratio_low": 1.0,
    "size_ratio_high": 1.2,
    "calibrated_size_ratio": 1.05,
}
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
