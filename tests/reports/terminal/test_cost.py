"""Broken by a cost beside the wrong run, and by a table of large costs that is wider than 80 columns."""

from __future__ import annotations

from typing import Any

from moe_lab.reports.terminal.layout import print_stacked
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
    columns = {item.heading: list(item.cells) for stack in table.stacks for item in stack}
    assert columns["method"] == ["base", "roe"] and columns["tokens out"] == ["4", "3"]
    assert columns["re-routed"] == ["-", "18.0%"] and columns["load"] == ["1,234.5 s"] * 2


def test_experts_per_token_are_a_column_where_a_method_reports_them():
    blocks = [run("base", "gsm8k"), run("top-p", "gsm8k", top_p={"experts_per_token": 2.345})]
    columns = {
        item.heading: list(item.cells) for stack in cost_table(blocks, ["", ""]).stacks for item in stack
    }
    assert columns["experts"] == ["-", "2.35"] and "experts" in COST_EXPLAINED
    plain = {item.heading for stack in cost_table(blocks[:1], [""]).stacks for item in stack}
    assert "experts" not in plain


def test_each_number_is_in_the_line_of_its_heading(capsys):
    """A run without experts per token has a dash in their line, and its changed share in the line below."""
    blocks = [
        run("roe", "gsm8k", roe={"changed_fraction": 0.43}),
        run("top-k", "gsm8k", top_k={"experts_per_token": 4}),
    ]
    print_stacked(cost_table(blocks, ["", ""]), {})
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    row = next(number for number, words in enumerate(lines) if words[0] == "roe")
    last = [words[-1] for words in lines]
    assert "experts" in last and last[last.index("experts") + 1] == "re-routed"
    assert last[row : row + 6] == ["-", "43.0%", "12", "4.00", "-", "12"]


def test_large_costs_of_several_tasks_take_80_columns(capsys):
    blocks = [run("base", "gsm8k"), run("finetune-freeze", ["arc_challenge", "openbookqa"])]
    print_stacked(cost_table(blocks, ["", "method.schedule=router-experts"]), COST_EXPLAINED)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for text in ("12,345.6 s", "1,234.5 s", "123,456,789", "95,367 MiB", "openbookqa", "near ties: "):
        assert text in out, text
