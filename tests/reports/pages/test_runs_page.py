"""The page of a grid. Broken by a number that is not the stored one, an answer that becomes markup, a request, and layers
out of order.
"""

import json
from itertools import pairwise

import pytest

from moe_lab.reports.pages.runs_page import (
    RunRouting,
    profiles_of,
    routing_of,
)
from tests.support.pages import HOSTILE, foreign_urls, texts, tree
from tests.support.stored_runs import pair_of_runs
from tests.support.views import write_runs_page

PAIRED = {"n": 2, "difference": 0.5, "ci95": [-0.2, 0.9], "p_mcnemar": 1.0, "to_right": 1, "to_wrong": 0}
CHANGES = {
    "paired": {"t": {"exact_match,none": PAIRED}},
    "untuned": True,
    "config_dirs": ["own"],
    "roe": {"n": 8, "temperatures": [0.0, 0.1], "changed_fraction": 0.25},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return pair_of_runs(
        tmp_path_factory.mktemp("outputs"), [("1", 0.0), ("x", 1.0)], [(HOSTILE, 1.0), ("x", 1.0)], **CHANGES
    )


@pytest.fixture(scope="module")
def page(runs):
    return write_runs_page(runs, runs[0].folder.parents[1] / "report.html")


def test_the_verdict_stands_first_headings_are_in_order_and_tables_have_captions(page):
    root = tree(page)
    [text] = texts(root.xpath("//p[contains(@class, 'lead')]"))
    assert text.startswith(
        "roe on t does not differ significantly from the base model: exact_match,none +0.5000"
    )
    assert texts(root.xpath("//h2"))[0] == "Verdict"
    levels = [int(heading.tag[1]) for heading in root.xpath("//h1|//h2|//h3|//h4")]
    assert levels[0] == 1 and all(later - earlier <= 1 for earlier, later in pairwise(levels))
    assert all(table.xpath("caption") for table in root.xpath("//table"))


def test_hostile_answers_are_data(page):
    root = tree(page)
    assert len(root.xpath("//script")) == 2 and not root.xpath("//*[@onerror]")
    assert not root.xpath("//img[not(starts-with(@src, 'data:image/svg+xml;'))]")
    data = json.loads(root.xpath("//script[@id='answer-data']/text()")[0])["answers"]
    assert [each["own"] for each in data] == [HOSTILE, "x"] and data[0]["kind"] == "wrong to right"
    assert foreign_urls(page) == [] and "python -m moe_lab --config-dir own method=" in root.text_content()


def test_runs_without_a_comparison_have_a_page_without_empty_sections(runs, tmp_path):
    root = tree(write_runs_page(runs[:1], tmp_path / "base.html"))
    assert "No stored run is compared with the base model." in root.text_content()
    data = json.loads(root.xpath("//script[@id='answer-data']/text()")[0])
    assert [each["kind"] for each in data["answers"]] == ["wrong", "right"]
    sections = ["Scores", "Answers", "Cost", "Provenance"]
    assert texts(root.xpath("//h2")) == sections == texts(root.xpath("//nav//a"))


@pytest.mark.parametrize(("temperatures", "heights"), [((0.0, 0.1, 0.2), [0, 35, 70]), ((0.0, 0.1, 0.1), [])])
def test_temperatures_by_layer_and_the_share_of_changed_decisions(temperatures, heights, tmp_path):
    roe = {"n": 8, "temperatures": list(temperatures), "cache": "clean", "changed_fraction": 0.25}
    base, own = pair_of_runs(
        tmp_path, [("a", 1.0)], [("a", 1.0)], roe=roe, tuning={"study": "s", "model": "tiny"}
    )
    found = routing_of(own, "roe")
    assert found.temperatures == temperatures and profiles_of([found]) == {temperatures: ["roe"]}
    root = tree(write_runs_page([base, own], tmp_path / "page.html"))
    assert [float(bar.get("height")) for bar in root.xpath("//*[@class='bar']")] == heights
    assert ("Temperature 0.1 in 2 of 3 MoE layers." in root.text_content()) == (not heights), "one number"
    assert found.facts == {"study": "s", "n": 8, "cache": "clean", "changed_fraction": 0.25}
    assert found.pictures == [] and routing_of(base, "base") is None
    (base.folder / "figures").mkdir()
    (base.folder / "figures" / "selections.svg").write_bytes(b"svg")
    assert routing_of(base, "base").pictures == [("selections", "data:image/svg+xml;base64,c3Zn")]


def test_runs_with_the_same_temperatures_share_a_figure():
    routing = [
        RunRouting(label, {}, temperatures, [])
        for label, temperatures in {"a": (0.1,), "c3po": (), "b": (0.2,), "c": (0.1,)}.items()
    ]
    assert profiles_of(routing) == {(0.1,): ["a", "c"], (0.2,): ["b"]}
