"""Broken by cells in another order than that of their core experts."""

from __future__ import annotations

import math
from pathlib import Path

from moe_lab.reports.figures.curves import flops_rows, write_flops
from moe_lab.reports.papers.cells import TableCell
from tests.support.stored_results import cell_table
from tests.support.stored_traces import c3po_results


def test_cost_is_by_core_experts(tmp_path: Path) -> None:
    def cell(core: int | None, flops: float) -> TableCell:
        c3po = {"core_experts": core, "flops_per_sample": flops, "flops_plain_per_sample": 1e9}
        base = {"run_id": "b", "results": {"t": {"acc,none": 0.25}}}
        return TableCell(coordinates={}, run_id="r", results=[c3po_results(core, c3po=c3po, baseline=base)])

    missing = TableCell(coordinates={}, run_id=None, problem="no data")
    cells = [cell(None, 3e9), cell(2, 2e9), missing]
    rows = flops_rows(cell_table(*cells))
    assert list(rows[["core_experts", "flops", "base"]].itertuples(index=False, name=None)) == [
        (2, 2e9, 0.25),
        (4, 3e9, 0.25),
    ]
    png, _ = write_flops(cell_table(*cells), tmp_path, "f", "T")
    assert png.exists() and not math.isnan(rows.iloc[0]["plain_flops"])
    assert write_flops(cell_table(missing), tmp_path, "g", "T") == []
