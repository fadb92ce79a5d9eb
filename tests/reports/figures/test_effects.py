"""Broken by a comparison that is left out, or by a point that is filled without being significant."""

from __future__ import annotations

from moe_lab.reports.figures.comparisons import effect_rows, write_effects
from moe_lab.reports.papers.cells import CellTable, TableCell
from moe_lab.reports.papers.experiment import Experiment
from tests.support.stored_results import results_of
from tests.support.views import family_of

KEYS = {"name": "own/e", "title": "T", "source": "S", "scales": {}, "metric": "headline", "paper": []}


def test_every_comparison_is_a_row(tmp_path):
    table = Experiment(**KEYS, rows=["method", "model.recipe.routing_noise"], columns=["task"])
    paired = {"t": {"acc,none": {"difference": 0.1, "ci95": [0.05, 0.15], "p_mcnemar": 0.001}}}
    coordinates = {"method": "roe", "model.recipe.routing_noise": "1", "task": "t"}
    cells = [TableCell(coordinates=coordinates, run_id="r", results=[results_of(paired=paired)])]
    [row] = effect_rows(CellTable(table, cells, family_of(table, cells)))
    assert row["label"] == "roe, noise in training: minus base"
    assert (row["difference"], row["low"], row["high"], row["p_holm"]) == (0.1, 0.05, 0.15, 0.001)
    picture, _ = write_effects(CellTable(table, cells, family_of(table, cells)), tmp_path, "e", "T")
    assert picture.stat().st_size > 5_000
