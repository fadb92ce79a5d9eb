"""Figures from traces: the numbers behind them, on runs made by hand.

Broken by: states or experts taken for one another, a doubled line that counts twice, a share of the wrong questions, a
layer that is left out, an oracle's question without neighbours.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from moe_lab.methods import get_method
from moe_lab.reports.figures import write_run_figures
from moe_lab.reports.figures.pathways import write_activation, write_sample
from moe_lab.reports.figures.traces import write_steps
from moe_lab.results.model import RunResult
from tests.support.stored_traces import BEFORE, c3po_results, run_of, write_traced_run
from tests.support.tiers import first_fast

KINDS = get_method("c3po").figures


def test_a_run_without_traces_has_no_figures(tmp_path: Path) -> None:
    assert write_run_figures(RunResult(c3po_results().content, tmp_path), KINDS) == []


@pytest.mark.parametrize("write", [write_steps, write_activation, write_sample])
@pytest.mark.parametrize("neighbours", first_fast([True, False]), ids=["neighbours", "oracle"])
def test_each_kind_leaves_a_picture_and_its_numbers(write: Any, neighbours: bool, tmp_path: Path) -> None:
    """A question with $ in it is text, not mathematics; the oracle has no neighbours."""
    changes = {} if neighbours else {"neighbours": [], "losses": [None, None]}
    run = run_of(tmp_path / "run", ["BA", "AA"], before=BEFORE, **changes)
    run.prompts[0] = "Is $x^2 or a% more? " * 100
    png, table = write([run, run], tmp_path, "f", "T")
    assert png.read_bytes()[:4] == b"\x89PNG" and png.name == "f.png"
    with table.open(newline="") as file:
        assert len(list(csv.DictReader(file))) >= 4


@pytest.mark.slow
def test_a_run_draws_its_own_figures(tmp_path: Path) -> None:
    results = write_traced_run(tmp_path / "run", ["BA", "AA"])
    names = [path.name for path in write_run_figures(results, KINDS)]
    assert names[::2] == ["steps.png", "activation.png", "sample.png", "retained.png"]
    assert (tmp_path / "run" / "figures" / "retained.csv").exists()
    results = write_traced_run(tmp_path / "part", ["BA"], core_experts=3)
    assert len(write_run_figures(results, KINDS)) == 6, "not all experts were optimized"
