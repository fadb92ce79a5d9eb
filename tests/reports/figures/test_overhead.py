"""Broken by a cost divided by the wrong thing, by a missing meter shown as 0."""

from __future__ import annotations

import pytest

from moe_lab.reports.figures.cost import overhead_rows
from moe_lab.reports.papers.cells import TableCell
from tests.support.stored_results import cell_of, overhead_cell, results_of


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
