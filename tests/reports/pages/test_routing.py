"""Routing. Broken by layers out of order, and by a run without anything about routing that has a section."""

from __future__ import annotations

from moe_lab.reports.pages.runs_page import Routing, profiles_of, routing_of
from tests.support.pages import tree
from tests.support.stored_runs import pair_of_runs
from tests.support.views import write_runs_page

ROE = {"n": 8, "temperatures": [0.0, 0.1, 0.2], "cache": "clean", "changed_fraction": 0.25}


def test_temperatures_by_layer_and_the_share_of_changed_decisions(tmp_path):
    base, own = pair_of_runs(tmp_path, [("a", 1.0)], [("a", 1.0)], roe=ROE)
    found = routing_of(own, "roe")
    assert found.temperatures == (0.0, 0.1, 0.2)
    assert profiles_of([found]) == {(0.0, 0.1, 0.2): ["roe"]}
    root = tree(write_runs_page([base, own], tmp_path / "page.html"))
    assert [float(bar.get("height")) for bar in root.xpath("//*[@class='bar']")] == [0, 35, 70]
    assert found.facts == {"n": 8, "cache": "clean", "changed_fraction": 0.25}
    assert found.layers == [] and found.pictures == []
    assert routing_of(base, "base") is None


def test_figures_of_the_run_stand_in_it(tmp_path):
    base, _ = pair_of_runs(tmp_path, [("a", 1.0)], [("a", 1.0)])
    (base.folder / "figures").mkdir()
    (base.folder / "figures" / "selections.png").write_bytes(b"png")
    assert routing_of(base, "base").pictures == [("selections", "data:image/png;base64,cG5n")]


def test_temperatures_of_zero_have_bars_without_height(tmp_path):
    _, own = pair_of_runs(tmp_path, [("a", 1.0)], [("a", 1.0)], roe=ROE | {"temperatures": [0.0, 0.0]})
    root = tree(write_runs_page([own], tmp_path / "page.html"))
    assert [float(bar.get("height")) for bar in root.xpath("//*[@class='bar']")] == [0, 0]


def test_runs_with_the_same_temperatures_share_a_figure():
    routing = [
        Routing(label, {}, temperatures, [], [])
        for label, temperatures in {"a": (0.1,), "c3po": (), "b": (0.2,), "c": (0.1,)}.items()
    ]
    assert profiles_of(routing) == {(0.1,): ["a", "c"], (0.2,): ["b"]}
