"""Forest plots. Broken by a point at another place than its number, a row out of order, or one that is left out."""

from __future__ import annotations

from moe_lab.reports.figures.differences import Difference
from moe_lab.reports.pages.plots import forest
from tests.support.pages import texts, tree
from tests.support.stored_runs import pair_of_runs
from tests.support.views import write_runs_page


def row(label: str, difference: float, task: str = "t", width: float = 0.1) -> Difference:
    limits = {"low": difference - width, "high": difference + width}
    return Difference(
        label=label, task=task, metric="acc,none", difference=difference, p=0.5, examples=1200, **limits
    )


def test_places_follow_the_numbers():
    [panel] = forest([row("a", -0.2), row("b", 0.3)], ["not significant", "better"])
    assert [(one.label, one.outcome) for one in panel.rows] == [("b", "better"), ("a", "not significant")]
    known = {label: x for x, label in panel.ticks}
    assert known["0"] == panel.zero and list(known) == ["\u22120.2", "0", "+0.2", "+0.4"]
    first, second = panel.rows
    assert first.low == known["+0.2"] and first.high == known["+0.4"] and second.x == known["\u22120.2"]
    assert 0 < second.low < second.x < second.high < first.x < first.high < 100


def test_each_task_has_a_panel_and_small_differences_stay_small():
    one, other = forest([row("a", 0.2, "u"), row("a", 0.001, "v", 0.0005)], ["better"] * 2)
    assert (one.title, other.title) == ("u, 1,200 examples", "v, 1,200 examples")
    assert 0 < other.rows[0].x - other.zero < 10


def test_the_page_draws_every_difference(tmp_path):
    paired = {"n": 2, "difference": 0.5, "ci95": [0.2, 0.9], "p_mcnemar": 0.01, "to_right": 1, "to_wrong": 0}
    runs = pair_of_runs(
        tmp_path,
        [("1", 0.0), ("x", 1.0)],
        [("2", 1.0), ("x", 1.0)],
        paired={"t": {"exact_match,none": paired}},
        untuned=True,
    )
    root = tree(write_runs_page(runs, tmp_path / "page.html"))
    [drawn] = root.xpath("//table[@class='forest']/tbody/tr")
    assert texts(drawn.xpath("th|td")) == ["roe untuned", "", "+0.5000", "[+0.2000, +0.9000]", "0.01"]
    assert drawn.get("class") == "better"
