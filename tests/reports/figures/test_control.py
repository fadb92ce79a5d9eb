"""Broken by expert work that leaves out a factor."""

from __future__ import annotations

from moe_lab.reports.figures.comparisons import control_rows
from tests.support.stored_results import cell_of, cell_table


def test_expert_work_is_rows_times_experts():
    base = cell_of(method="base", model={"name": "tiny", "top_k": 8}, value=0.4)
    rows = control_rows(cell_table(cell_of(n=2), base, cell_of(n=4)))
    columns = rows[["method", "rows", "experts_per_token", "expert_work"]]
    assert list(columns.itertuples(index=False, name=None)) == [
        ("base", 1, 8, 8),
        ("roe", 2, 4, 8),
        ("roe", 4, 4, 16),
    ]
