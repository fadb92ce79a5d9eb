"""Plots. Broken by a point at another place than its number, a row that is out of order or left out, and by axes that blow
up a small difference."""

from dataclasses import replace

import pytest

from moe_lab.reports.pages.plots import Axis, forest, plot
from moe_lab.reports.scores import ScoreLine
from moe_lab.results.scores import NO_SCORE
from tests.support.pages import texts, tree
from tests.support.stored_runs import pair_of_runs
from tests.support.views import write_runs_page


def row(label: str, difference: float, task: str = "t", width: float = 0.1) -> ScoreLine:
    interval = (difference - width, difference + width)
    score = replace(NO_SCORE, task=task, metric="acc,none", difference=difference, p=0.5, p_holm=0.5, n=1200)
    return ScoreLine(replace(score, difference_interval=interval), label)


def test_rows_are_ordered_and_within_the_axis():
    [panel] = forest([row("a", -0.2), row("b", 0.3)])
    assert [one.label for one in panel.rows] == ["b", "a"]
    axis = panel.axis
    assert (axis.low, axis.high) == pytest.approx((-0.3, 0.4)), "the ends of the intervals"
    assert [text for _, text in axis.ticks()] == ["\u22120.2", "0", "+0.2", "+0.4"]
    assert all(
        axis.share(float(text.replace("\u2212", "-"))) == pytest.approx(share) for share, text in axis.ticks()
    )


def test_each_task_has_a_panel_and_small_differences_stay_small():
    one, other = forest([row("a", 0.2, "u"), row("a", 0.001, "v", 0.0005)])
    assert (one.title, other.title) == ("u, 1,200 examples", "v, 1,200 examples")
    assert 0 < other.axis.share(0.001) - other.axis.share(0) < 0.1


def test_ticks_are_round_and_within():
    assert [text for _, text in Axis("", -0.03, 0.11).ticks()] == ["0", "0.05", "0.1"]
    assert [text for _, text in Axis("", 0, 7.3).ticks()] == ["0", "2", "4", "6"]
    for i in range(1, 400):
        ticks = Axis("", -(i**1.7) / 7e3, (i**2.1) / 3e4).ticks()
        assert 2 <= len(ticks) <= 6 and 0 <= ticks[0][0] and ticks[-1][0] <= 1, i


def test_a_scatter_has_all_intervals_and_costs_from_zero_on():
    def axes(*points):
        made = plot("t", "s", "acc", [{"cost": cost, "interval": interval} for cost, interval in points])
        return made["across"], made["upwards"]

    across, upwards = axes((2.0, (0.4, 0.6)), (8.0, (0.7, 0.7)))
    assert (across.low, across.high, upwards.low, upwards.high) == (0, 8, 0.4, 0.7)
    assert axes((0.0, (0.5, 0.5)))[0].share(0) == 0


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
    [point], [whisker] = drawn.xpath(".//*[@class='dot']"), drawn.xpath(".//*[@class='whisker']")
    places = [whisker.get("x1"), point.get("cx"), whisker.get("x2")]
    assert places == ["25.56%", "54.89%", "94.0%"], "of 0.2, 0.5 and 0.9 on an axis from 0 to 0.9"
