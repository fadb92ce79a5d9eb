"""Broken by cells in another order than that of their core experts, and by a gain over another row than the one before."""

from __future__ import annotations

from pathlib import Path

from moe_lab.reports.figures.curves import flops_rows, write_flops
from moe_lab.reports.papers.cells import TableCell
from tests.support.stored_results import cell_table, results_of
from tests.support.stored_traces import c3po_results


def test_cost_is_by_core_experts(tmp_path: Path) -> None:
    def cell(core: int | None, flops: float) -> TableCell:
        c3po = {"core_experts": core, "flops_per_sample": flops, "flops_plain_per_sample": 1e9}
        base = {"run_id": "b", "results": {"t": {"acc,none": 0.25}}}
        return TableCell(coordinates={}, run_id="r", results=[c3po_results(core, c3po=c3po, baseline=base)])

    missing = TableCell(coordinates={}, run_id=None, problem="no data")
    model = {"name": "tiny", "top_k": 2, "experts": 4}
    untouched = results_of(method="base", value=0.25, model=model)
    base = TableCell(coordinates={}, run_id="b", results=[untouched])
    cells = [cell(None, 3e9), base, cell(2, 2e9), missing]
    rows = flops_rows(cell_table(*cells))
    value = cells[0].results[0].scores("t")["acc,none"]
    assert list(
        rows[["core_experts", "flops", "plain_flops", "gain"]].fillna(-1).itertuples(index=False, name=None)
    ) == [
        (0, 1e9, 1e9, -1),
        (2, 2e9, 1e9, value - 0.25),
        (4, 3e9, 1e9, 0),
    ]
    png, _ = write_flops(cell_table(*cells), tmp_path, "f", "T")
    assert png.exists()
    assert write_flops(cell_table(missing), tmp_path, "g", "T") == []
