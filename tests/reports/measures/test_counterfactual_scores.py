"""Breaks if routes reach a logger under another band's name, or a run without them logs any."""

from __future__ import annotations

from pathlib import Path

from moe_lab.reports.measures import view_of
from moe_lab.results.model import RunResult
from tests.support.counterfactual import write_routes
from tests.support.stored_results import RESULTS


def test_gains_and_better_routes_by_band(tmp_path: Path) -> None:
    run = RunResult(RESULTS.content, tmp_path)
    view = view_of("counterfactual")
    assert view.of(run) is None
    content = write_routes(tmp_path, RESULTS)
    scores = view.values(view.of(run))
    assert len(scores) == 3 * 6
    assert scores["counterfactual/best/all"] == content["all"]["gain"]["best"]["value"]
    assert scores["counterfactual/roe/0.4 to 0.6"] == content["bands"][2]["gain"]["roe"]["value"]
    assert scores["counterfactual/better/0.9 to 1"] == content["bands"][5]["better"]["value"]
