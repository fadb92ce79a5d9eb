"""Verdicts. Broken by a difference that is significant without evidence, or in the wrong direction."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moe_lab.reports.pages.plots import verdicts
from moe_lab.results.score_table import Family
from moe_lab.results.scores import BETTER, EQUAL_RUNS, NOT_SIGNIFICANT, WORSE, Score

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


def verdict(name, score, lower_is_better):
    own = replace(score, lower_is_better=lower_is_better)
    [made] = verdicts([(name, family_of([own]).correct(own))])
    return made


def test_the_sentences_can_be_quoted():
    made = verdict("roe on toy_math", SCORE, lower_is_better=False)
    assert made.text == (
        "roe on toy_math: exact_match,none 61.0% against 58.0% of the base model, a difference of +3.0 points (95% "
        "interval over documents \u22121.0 to +7.0), on 200 documents. 12 answers turned right and 6 wrong (McNemar's p = 0.24). The "
        "difference is not statistically significant. [PARTIAL, untuned]"
    )


@pytest.mark.parametrize(
    "changes, lower, outcome",
    [
        ({}, False, NOT_SIGNIFICANT),
        ({"p_mcnemar": 0.01}, False, BETTER),
        ({"p_mcnemar": 0.01}, True, WORSE),
        ({"p_mcnemar": 0.01, "difference": -0.03}, False, WORSE),
        ({"p_mcnemar": 0.06, "difference_interval": (0.01, 0.05)}, False, NOT_SIGNIFICANT),
        ({"p_mcnemar": None, "difference_interval": (0.01, 0.05)}, False, BETTER),
        ({"p_mcnemar": None, "p_randomization": 0.04}, False, BETTER),
        (
            {"p_mcnemar": None, "p_randomization": 0.06, "difference_interval": (0.01, 0.05)},
            False,
            NOT_SIGNIFICANT,
        ),
        ({"p_mcnemar": None, "difference_interval": (-0.05, -0.01), "difference": -0.03}, True, BETTER),
        ({"p_mcnemar": None, "difference_interval": None}, False, NOT_SIGNIFICANT),
        ({"p_mcnemar": None, "difference_interval": (0.01, 0.05), "seeds": 3}, False, NOT_SIGNIFICANT),
        (
            {"p_mcnemar": None, "difference_interval": (0.01, 0.05), "seeds": 3, "p_seeds": 0.04},
            False,
            BETTER,
        ),
        ({"p_mcnemar": None, "difference": 0.0, "difference_interval": (0.0, 0.0)}, False, NOT_SIGNIFICANT),
    ],
)
def test_p_decides_and_else_the_interval(changes, lower, outcome):
    assert verdict("x", replace(SCORE, **changes), lower).score.verdict == outcome


def test_other_metrics_are_no_percentages():
    ppl = replace(
        SCORE, metric="word_perplexity,none", value=3.25, baseline=3.5, difference=-0.25, flips=None
    )
    ppl = replace(ppl, p_seeds=0.01, p_mcnemar=None, difference_interval=(-0.4, -0.1), marks=(), seeds=3)
    text = verdict("x", ppl, lower_is_better=True).text
    assert "3.2500 against 3.5000" in text and "over 3 seeds" in text
    assert text.endswith("It is better, and the difference is statistically significant.")


def test_equal_within_rounding_is_no_difference():
    """Broken by an interval that excludes 0 by rounding, which is then called significant."""
    same = replace(SCORE, p_mcnemar=None, flips=None, equal=True, difference_interval=(1e-6, 2e-6), marks=())
    made = verdict("x", same, lower_is_better=True)
    assert made.score.verdict == EQUAL_RUNS and made.text.endswith(
        "They are equal within rounding in every document."
    )
    assert "p =" not in made.text


def test_a_score_without_comparison_has_no_verdict():
    assert verdicts([("base", replace(SCORE, difference=None))]) == []


def test_holm_corrects_for_all_comparisons_of_the_command():
    """Of 0.01, 0.03 and 0.04 Holm leaves 0.03, 0.06 and 0.06; a comparison without p does not count."""
    given = [replace(SCORE, run_id=str(p), p_mcnemar=p) for p in (0.04, 0.01, None, 0.03)]
    made = verdicts([("x", score) for score in map(family_of(given).correct, given)])
    assert [one.score.verdict for one in made] == [NOT_SIGNIFICANT, BETTER, NOT_SIGNIFICANT, NOT_SIGNIFICANT]
    assert "(McNemar's p = 0.01, 0.03 by Holm for 3 scores)" in made[1].text


def test_a_part_of_a_group_has_no_verdict():
    """It has no p, as an expert metric has none; but the group's comparison is the one that was asked for."""
    part = replace(SCORE, p_mcnemar=None, difference_interval=(0.01, 0.07))
    assert verdicts([("capacity", part)])
    assert not verdicts([("a subject", replace(part, marks=("part",)))])


def test_one_of_several_seeds_has_no_verdict():
    """The mean over the seeds is in the family, the seeds are not."""
    mean = replace(SCORE, run_id="r0 r1", seeds=2, p_mcnemar=None, p_seeds=0.01)
    seed = replace(SCORE, run_id="r0", p_mcnemar=0.001)
    family = family_of([mean])
    made = verdicts([("x", family.correct(score)) for score in (seed, mean)])
    assert [one.score.run_id for one in made] == ["r0 r1"]
