"""The score table of a command. Breaks if a number is beside another run, a single seed or a part of a group has a verdict,
or a difference is significant without evidence, or in the wrong direction."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moe_lab.reports.scores import (
    CommandTable,
    ScoreLine,
    by_outcome,
    conclusion,
    has_verdict,
    run_labels,
    sentence,
    settings,
)
from moe_lab.results.score_table import Family, SeedGroup, family_of
from moe_lab.results.scores import BETTER, BOTH, DIFFERENT, EQUAL_RUNS, MCNEMAR, NOT_SIGNIFICANT, WORSE, Score
from moe_lab.tasks.answer_forms import LETTERS
from tests.support.stored_results import changed, results_of


def cells(table: CommandTable) -> dict[str, list[str]]:
    """By heading; of two columns with one heading the last, which is the difference's."""
    return {column.heading: list(column.cells) for column in table.columns()}


def test_settings_tell_the_runs_of_a_grid_apart():
    typed = [["method.temperature=s/s-1/best.yaml"], ["method.roe={n:8,temperature:/s/s-2/best.yaml}"]]
    assert settings(typed, [0, 0]) == ["method.temperature=s-1", "method.roe={n:8,temperature:s-2}"]
    assert settings([["limit=5"], ["limit=5"]], [0, 1]) == ["seed=0", "seed=1"]
    assert settings([["limit=5"]], [0]) == [""]
    assert settings([["limit=5", "limit=2"], ["limit=2"]], [0, 0]) == ["", ""], "the last one of a key"


def test_a_methods_keys_are_shown_if_another_method_is_in_the_grid():
    """`method.n=4` of RoE and of C3PO are two different things: a row without it looks like the method's default."""
    typed = [["method=base", "limit=5"]]
    typed += [["method=" + name, "method.n=4", "limit=5"] for name in ("roe", "c3po")]
    assert settings(typed, [None, 0, 0]) == ["", "method.n=4", "method.n=4"]
    assert settings(typed[:2], [None, 0]) == ["", ""]


def test_runs_that_ask_in_letters_are_told_from_those_that_ask_by_text():
    def asked(task, choices):
        run = results_of(task={"name": task, "tasks": [task], "metric": "acc,none"}, samples={task: [0]})
        return changed(run, configs={task: {"doc_to_choice": choices}})

    text, letters, other = asked("a", "{{choices}}"), asked("a", LETTERS), asked("b", ["A", "B"])
    assert run_labels([text, letters, other]) == ["task.answer=text", "task.answer=letters", ""]
    assert run_labels([letters, other]) == ["", ""]


def test_the_cost_is_that_of_the_run_and_relative_to_its_base():
    cost = {"wall_seconds": 2.0, "tokens_in": 100}
    base = results_of("base", run_id="b", cost=cost)
    roe = results_of(baseline={"run_id": "b"}, cost=cost | {"wall_seconds": 5.0, "tokens_in": 1600})
    paired = {"t": {"acc,none": {"difference": 0.1}}}
    control = {"calibration": {"run_id": "c", "results": {}, "paired": paired}}
    found = cells(CommandTable([base, roe, changed(roe, moe_lab=roe["moe_lab"] | {"compared": control})]))
    assert found["time"] == ["2.0 s", "5.0 s", "5.0 s", ""]
    assert found["tokens"] == ["100", "1,600", "1,600", ""]
    assert found["× base"] == ["1.00", "16.00", "16.00", ""], "once a run, not once a comparison"
    assert found["against"] == ["", "", "", "calibration"]


FULL = {"run_id": "full", "results": {"t": {"acc,none": 0.44}}}


def group(method: str, mean: float, **block: Any) -> SeedGroup:
    """Two seeds of a method, 0.02 apart, base at 0.4 and full fine-tuning at 0.44."""

    def paired(value: float, other: float) -> dict[str, Any]:
        return {"t": {"acc,none": {"difference": value - other, "ci95": None, "p_mcnemar": None}}}

    results = [
        results_of(
            method,
            value,
            run_id=f"{method}-{seed}",
            seed=seed,
            baseline={"run_id": "b", "results": {"t": {"acc,none": 0.4}}},
            paired=paired(value, 0.4),
            compared={"full_fine_tuning": FULL | {"paired": paired(value, 0.44)}},
            **block,
        )
        for seed, value in enumerate((mean - 0.01, mean + 0.01))
    ]
    score = {
        "ci95_documents": [mean - 0.1, mean + 0.1],
        "difference_ci95_documents": [mean - 0.5, mean - 0.3],
    }
    score |= {
        "difference_p_documents": 0.03,
        "compared": {"full_fine_tuning": {"difference_p_documents": 0.2}},
    }
    summary = {"seeds": [0, 1], "overrides": [], "scores": {"t": {"acc,none": score}}}
    return SeedGroup(results, summary, Path("s"))


def test_a_mean_is_shown_in_the_place_of_its_seeds():
    groups = [group("roe", 0.5), group("finetune-freeze", 0.6)]
    runs = [run for one in groups for run in one.results]
    table = CommandTable(runs, groups, family_of(groups))
    found = cells(table)
    assert found["method"] == ["roe"] * 2 + ["finetune-freeze"] * 2 and found["seeds"] == ["2"] * 4
    assert found["value"] == ["0.5000"] * 2 + ["0.6000"] * 2
    assert found["difference"] == ["+0.1000", "+0.0600", "+0.2000", "+0.1600"]
    assert found["against"] == ["base", "full fine tuning"] * 2
    over_seeds = ["[-0.0271, +0.2271]", "", "[+0.0729, +0.3271]", ""]
    assert found["95% over seeds"] == over_seeds, "base: the larger p is Student's; else it is over documents"
    assert len(table.lines) == 8 + 4, "the frame and the page have the seeds, too"


# Comparisons in words

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
    p=0.24,
    test=MCNEMAR,
    changed=(12, 6),
)
ABOVE = {"p": None, "difference_interval": (0.01, 0.05)}
"""Without p, an interval above 0."""


def lines(*scores: Score) -> list[ScoreLine]:
    family = Family.of({score.comparison: score.p for score in scores})
    return [ScoreLine(family.correct(score), "") for score in scores]


@pytest.mark.parametrize(
    "changes, lower, outcome",
    [
        ({}, False, NOT_SIGNIFICANT),
        ({"p": 0.01}, False, BETTER),
        ({"p": 0.01}, None, DIFFERENT),
        ({"p": 0.049}, False, BETTER),
        ({"p": 0.05}, False, NOT_SIGNIFICANT),
        ({"p": 0.01}, True, WORSE),
        ({"p": 0.01, "difference": -0.03}, False, WORSE),
        (ABOVE | {"p": 0.06}, False, NOT_SIGNIFICANT),
        (ABOVE, False, BETTER),
        ({"p": None, "difference_interval": (-0.05, -0.01), "difference": -0.03}, True, BETTER),
        ({"p": None, "difference_interval": None}, False, NOT_SIGNIFICANT),
        (ABOVE | {"seeds": 3}, False, NOT_SIGNIFICANT),
        (ABOVE | {"seeds": 3, "p": 0.04}, False, BETTER),
        ({"p": None, "difference": 0.0, "difference_interval": (0.0, 0.0)}, False, NOT_SIGNIFICANT),
        # an interval that excludes 0 by rounding is not significant
        ({"p": None, "equal": True, "difference_interval": (1e-6, 2e-6)}, True, EQUAL_RUNS),
    ],
)
def test_p_decides_and_else_the_interval(changes, lower, outcome):
    [line] = lines(replace(SCORE, lower_is_better=lower, **changes))
    assert line.score.verdict == outcome and by_outcome([line])[outcome] == [line]


def test_the_sentences_can_be_quoted():
    [line] = lines(SCORE)
    assert (
        conclusion([line])
        == sentence(line)
        == (
            "roe on toy_math does not differ significantly from the base model: exact_match,none +0.0300, 95% over "
            "documents [-0.0100, +0.0700], p 0.24; changed answers +12 -6."
        )
    )
    better = replace(
        SCORE,
        p=0.01,
        changed=None,
        other="full_fine_tuning",
        difference_both_interval=(0.01, 0.05),
        tested_over=BOTH,
    )
    found = lines(better, replace(SCORE, run_id="other"))
    assert sentence(found[0]) == (
        "roe on toy_math is better than full fine tuning: exact_match,none +0.0300, 95% over seeds and documents "
        "[+0.0100, +0.0500], p 0.01."
    ), "alone in the family of controls"
    assert conclusion(found).endswith("base model and its controls: 1 better, 0 worse, 1 not significant.")
    [same] = lines(replace(SCORE, p=None, equal=True))
    assert (
        sentence(same)
        == "roe on toy_math equals the base model within rounding in every document (exact_match,none)."
    )


def test_a_score_without_comparison_a_part_of_a_group_and_one_of_several_seeds_have_no_verdict():
    """A part has no p, as an expert metric has none; but the group's comparison is the one that was asked for."""
    alone = replace(SCORE, p=None, difference_interval=(0.01, 0.07))
    without = (replace(alone, marks=("part",)), replace(SCORE, difference=None), replace(SCORE, p=0.001))
    assert has_verdict(alone) and not any(map(has_verdict, without)), "but their mean has one"
