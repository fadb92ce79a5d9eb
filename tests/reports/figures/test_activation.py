"""Broken by weights that are counted instead of selected experts."""

from __future__ import annotations

from pathlib import Path

import pytest

from moe_lab.reports.figures.pathways import activation_rows, entropy_bits, frequency_LE
from tests.support.stored_traces import run_of


def test_activation_counts_the_experts_that_are_taken(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", ["A", "A"])
    assert frequency_LE(run, "before").tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]
    assert frequency_LE(run, "after").tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]
    rows = activation_rows(run)
    assert [(row["layer"], row["expert"], row["before"], row["after"]) for row in rows][4:6] == [
        (4, 0, 1.0, 0.0),
        (4, 1, 1.0, 1.0),
    ]
    assert entropy_bits(frequency_LE(run, "after")) == pytest.approx(1.0), "two experts, equally often"
