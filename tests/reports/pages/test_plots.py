"""Plots. Broken by a point at another place than its number, a row that is out of order or left out, and by axes that blow
up a small difference.

Verdicts. Broken by a difference that is significant without evidence, or in the wrong direction.
"""

from dataclasses import replace

import pytest

from moe_lab.reports.pages.plots import Axis, Point, forest, plot, verdicts
from moe_lab.results.score_table import Family, ScoreLine
from moe_lab.results.scores import BETTER, DIFFERENT, EQUAL_RUNS, NO_SCORE, NOT_SIGNIFICANT, WORSE, Score
from tests.support.pages import texts, tree
from tests.support.stored_runs import pair_of_runs
from tests.support.views import write_runs_page


def row(label: str, difference: float, task: str = "t", width: float = 0.1) -> ScoreLine:
    interval = (difference - width, difference + width)
    score = replace(
        NO_SCORE, task=task, metric="acc,none", difference=difference, p_mcnemar=0.5, p_holm=0.5, n=1200
    )
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
    made = plot("t", "s", "acc", [Point("1", 2.0, 0.5, (0.4, 0.6)), Point("2", 8.0, 0.7, (0.7, 0.7))])
    assert (made.across.low, made.across.high, made.upwards.low, made.upwards.high) == (0, 8, 0.4, 0.7)
    assert plot("t", "s", "acc", [Point("1", 0.0, 0.5, (0.5, 0.5))]).across.share(0) == 0


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


SCORE = Score(
    model="tiny",
    method="roe",
    task="toy_math",
    metric="exact_match,none",
    run_id="r",
    n=200,
    value=0.61,
    baseline=0.58,
    difference=0.03,
    difference_interval=(-0.01, 0.07),
    p_mcnemar=0.24,
    flips=(12, 6),
    marks=("PARTIAL", "untuned"),
)


def family_of(scores):
    return Family.of({score.comparison: score.p for score in scores})


def verdict(score, lower_is_better):
    own = replace(score, lower_is_better=lower_is_better)
    [made] = verdicts([ScoreLine(family_of([own]).correct(own), "")])
    return made


def test_the_sentences_can_be_quoted():
    made = verdict(SCORE, lower_is_better=False)
    assert made.text == (
        "roe on toy_math: exact_match,none 61.0% against 58.0% of the base model, a difference of +3.0 points (95% "
        "interval over documents \u22121.0 to +7.0), on 200 documents. 12 answers turned right and 6 wrong (McNemar's p = 0.24). The "
        "difference is not statistically significant. [PARTIAL, untuned]"
    )


ABOVE = {"p_mcnemar": None, "difference_interval": (0.01, 0.05)}
"""Without p, an interval above 0."""


@pytest.mark.parametrize(
    "changes, lower, outcome",
    [
        ({}, False, NOT_SIGNIFICANT),
        ({"p_mcnemar": 0.01}, False, BETTER),
        ({"p_mcnemar": 0.01}, None, DIFFERENT),
        ({"p_mcnemar": 0.049}, False, BETTER),
        ({"p_mcnemar": 0.05}, False, NOT_SIGNIFICANT),
        ({"p_mcnemar": 0.01}, True, WORSE),
        ({"p_mcnemar": 0.01, "difference": -0.03}, False, WORSE),
        (ABOVE | {"p_mcnemar": 0.06}, False, NOT_SIGNIFICANT),
        (ABOVE, False, BETTER),
        ({"p_mcnemar": None, "p_randomization": 0.04}, False, BETTER),
        (ABOVE | {"p_randomization": 0.06}, False, NOT_SIGNIFICANT),
        ({"p_mcnemar": None, "difference_interval": (-0.05, -0.01), "difference": -0.03}, True, BETTER),
        ({"p_mcnemar": None, "difference_interval": None}, False, NOT_SIGNIFICANT),
        (ABOVE | {"seeds": 3}, False, NOT_SIGNIFICANT),
        (ABOVE | {"seeds": 3, "p_seeds": 0.04}, False, BETTER),
        ({"p_mcnemar": None, "difference": 0.0, "difference_interval": (0.0, 0.0)}, False, NOT_SIGNIFICANT),
    ],
)
def test_p_decides_and_else_the_interval(changes, lower, outcome):
    assert verdict(replace(SCORE, **changes), lower).score.verdict == outcome


def test_other_metrics_are_no_percentages():
    ppl = replace(
        SCORE, metric="word_perplexity,none", value=3.25, baseline=3.5, difference=-0.25, flips=None
    )
    ppl = replace(ppl, p_seeds=0.01, p_mcnemar=None, difference_interval=(-0.4, -0.1), marks=(), seeds=3)
    text = verdict(ppl, lower_is_better=True).text
    assert "3.2500 against 3.5000" in text and "over 3 seeds" in text
    assert text.endswith("It is better, and the difference is statistically significant.")


def test_equal_within_rounding_is_no_difference():
    """Broken by an interval that excludes 0 by rounding, which is then called significant."""
    same = replace(SCORE, p_mcnemar=None, flips=None, equal=True, difference_interval=(1e-6, 2e-6), marks=())
    made = verdict(same, lower_is_better=True)
    assert made.score.verdict == EQUAL_RUNS
    assert made.text.endswith("They are equal within rounding in every document.")
    assert "p =" not in made.text


def test_a_score_without_comparison_and_a_part_of_a_group_have_no_verdict():
    """A part has no p, as an expert metric has none; but the group's comparison is the one that was asked for."""
    part = replace(SCORE, p_mcnemar=None, difference_interval=(0.01, 0.07))
    others = (replace(part, marks=("part",)), replace(SCORE, difference=None))
    assert verdicts([ScoreLine(part, "")]) and not verdicts([ScoreLine(other, "") for other in others])


def test_holm_corrects_for_all_comparisons_of_the_command():
    """Of 0.01, 0.03 and 0.04 Holm leaves 0.03, 0.06 and 0.06; a comparison without p does not count."""
    given = [replace(SCORE, run_id=str(p), p_mcnemar=p) for p in (0.04, 0.01, None, 0.03)]
    made = verdicts([ScoreLine(score, "") for score in map(family_of(given).correct, given)])
    assert [one.score.verdict for one in made] == [NOT_SIGNIFICANT, BETTER, NOT_SIGNIFICANT, NOT_SIGNIFICANT]
    assert "(McNemar's p = 0.01, 0.03 by Holm for 3 scores)" in made[1].text


def test_one_of_several_seeds_has_no_verdict():
    """The mean over the seeds is in the family, the seeds are not."""
    mean = replace(SCORE, run_id="r0 r1", seeds=2, p_mcnemar=None, p_seeds=0.01)
    seed = replace(SCORE, run_id="r0", p_mcnemar=0.001)
    family = family_of([mean])
    made = verdicts([ScoreLine(family.correct(score), "") for score in (seed, mean)])
    assert [one.score.run_id for one in made] == ["r0 r1"]
