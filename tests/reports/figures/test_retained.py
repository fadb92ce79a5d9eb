"""Broken by: ranks of the wrong state, runs that optimized some experts only."""

from __future__ import annotations

from pathlib import Path

from moe_lab.reports.figures.traces import retained_rows, write_retained
from tests.support.stored_traces import run_of


def test_retained_experts_are_counted_by_the_routers_rank(tmp_path: Path) -> None:
    """Taken afterwards: experts 0 and 2, which the router had first and third, and 3 and 1, fourth and second."""
    rows = retained_rows(run_of(tmp_path / "run", ["A", "A"]))
    assert [row["share"] for row in rows] == [0.25, 0.5, 0.75, 1.0]
    assert rows[0]["questions"] == 2


def test_retained_experts_need_all_to_be_optimized(tmp_path: Path) -> None:
    some = run_of(tmp_path / "some", ["A"], core_experts=3)
    every = run_of(tmp_path / "every", ["A"], core_experts=20)
    assert write_retained([some], tmp_path, "f") == []
    assert len(write_retained([some, every], tmp_path, "f")) == 2
    assert len((tmp_path / "f.csv").read_text().splitlines()) == 1 + 4
