"""Broken by a cost beside the wrong run."""

from __future__ import annotations

from typing import Any

from moe_lab.reports.terminal.results import COST_EXPLAINED, cost_table
from moe_lab.results.model import RunResult
from tests.support.stored_results import results_of

COST = {
    "wall_seconds": 12345.6,
    "load_seconds": 1234.5,
    "tokens_in": 123_456_789,
    "tokens_out": 1_234_567,
    "tokens_per_second": 123_456,
    "peak_memory_bytes": 10**11,
    "device": "cuda:0",
    "near_ties": 12,
}


def run(method: str, task: str | list[str], **changes: Any) -> RunResult:
    return results_of(method, task={"name": task}, cost=COST | {"tokens_out": len(method)}, **changes)


def test_each_run_has_its_costs():
    blocks = [run("base", "gsm8k"), run("roe", "gsm8k", roe={"changed_fraction": 0.18})]
    table = cost_table(blocks, ["", ""])
    assert table.title == "Cost: model=tiny task=gsm8k device=cuda:0"
    columns = {column.heading: list(column.cells) for column in table.columns}
    assert columns["method"] == ["base", "roe"] and columns["tokens out"] == ["4", "3"]
    assert columns["re-routed"] == ["", "18.0%"] and columns["load"] == ["1,234.5 s"] * 2


def test_experts_per_token_are_a_column_where_a_method_reports_them():
    blocks = [run("base", "gsm8k"), run("top-p", "gsm8k", top_p={"experts_per_token": 2.345})]
    columns = {column.heading: list(column.cells) for column in cost_table(blocks, ["", ""]).columns}
    assert columns["experts"] == ["", "2.35"] and "experts" in COST_EXPLAINED
    assert "experts" not in cost_table(blocks[:1], [""]).headings
