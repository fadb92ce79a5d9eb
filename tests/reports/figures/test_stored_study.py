"""Broken by a study that is drawn twice, or before it has a complete trial."""

from __future__ import annotations

from pathlib import Path

from moe_lab.reports.figures.studies import studies_of
from moe_lab.reports.papers.cells import TableCell
from tests.support.stored_studies import write_study


def cell_of(study: Path | None = None) -> TableCell:
    return TableCell(coordinates={}, run_id="r", studies=[study] if study else [])


def test_a_study_of_several_cells_is_drawn_once(tmp_path: Path) -> None:
    done = write_study(tmp_path / "a", [2.0, 1.0], temperature=[0.0, 0.1, 0.0])
    begun = write_study(tmp_path / "b", [])
    cells = [cell_of(done), cell_of(done), cell_of(begun), cell_of()]
    assert [study.folder for study in studies_of(cells)] == [done]
