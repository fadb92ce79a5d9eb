"""The table of a comparison on the terminal."""

from __future__ import annotations

from moe_lab.config.terminal import one_line
from moe_lab.reports.terminal.layout import (
    Column,
    TextTable,
    names,
    numbers,
    print_text_table,
    text_table,
)
from moe_lab.reports.terminal.results import HOLM, INTERVAL, NOT_CORRECTED, P
from moe_lab.results.comparisons.comparison import Comparison
from moe_lab.results.comparisons.scores import RANDOMIZATION, ComparedScore
from moe_lab.results.measured import interval, number
from moe_lab.results.scores import MARKS
from moe_lab.results.significance import ALPHA

SHOWN_FLIPS = 10
"""Most document numbers in a line of flips."""


def print_comparison(comparison: Comparison) -> None:
    """Print the evaluations, a row per evaluation, task and metric, the first flips, and the notes."""
    for evaluation in comparison.evaluations:
        print(f"{evaluation.key}: {evaluation.label}, {one_line(evaluation.file)}")
        if below := "  ".join([*filter(None, [evaluation.settings]), *evaluation.marks]):
            print(f"   {below}")
    print_text_table(comparison_table(comparison), _explained(comparison))
    seen = {mark for evaluation in comparison.evaluations for mark in evaluation.marks}
    marks = [text for mark, text in MARKS.items() if mark in seen]
    for line in [*flip_lines(comparison), *marks, *comparison.notes]:
        print(one_line(line))


def comparison_table(comparison: Comparison) -> TextTable:
    """One row per evaluation, task and metric; p corrected by Holm where there are several rows."""
    scores, other = comparison.scores, _other(comparison)
    corrected = len(scores) > 1
    p_values = [score.p_holm if corrected else score.p for score in scores]
    flips = ["-" if score.to_right is None else f"+{score.to_right} -{score.to_wrong}" for score in scores]
    verdicts = [score.verdict if score.told_from_chance or score.equal else "no" for score in scores]
    named = {"with": [score.other for score in scores]} if other != "b" else {}
    named |= {"task": [score.task for score in scores], "metric": [score.metric for score in scores]}
    tested = zip(scores, p_values, strict=True)
    columns = {
        "a": [number(score.a) for score in scores],
        other: [number(score.b) for score in scores],
        "difference": [number(score.difference, sign=True) for score in scores],
        INTERVAL: [interval(score.interval, sign=True) for score in scores],
        HOLM if corrected else P: ["-" if score.equal else number(p) for score, p in tested],
        "changed": flips,
        "significant": verdicts,
    }
    n = Column(heading="n", cells=[f"{score.n:,}" for score in scores], shared=True)
    return text_table("Compared with a", [*names(named), n, *numbers(columns)])


def flip_lines(comparison: Comparison) -> list[str]:
    """The numbers of the first documents that flip, a line per row of the table and direction."""
    kinds = {"to_right": ("wrong", "right"), "to_wrong": ("right", "wrong")}
    return [
        f"{score.task} {score.metric}, {before} in a and {after} in {score.other}: {_numbers(score.flips[kind])}"
        for score in comparison.scores
        if score.flips
        for kind, (before, after) in kinds.items()
        if score.flips[kind]
    ]


def _other(comparison: Comparison) -> str:
    """The name of the evaluation that is compared with `a`: "b", or "other" for several."""
    return "b" if len(comparison.evaluations) == 2 else "other"


def _numbers(documents: list[int]) -> str:
    left = len(documents) - SHOWN_FLIPS
    shown = ", ".join(map(str, documents[:SHOWN_FLIPS]))
    return f"{shown} and {left:,} more" if left > 0 else shown


def _explained(comparison: Comparison) -> dict[str, str]:
    """The meanings of the columns."""
    other = _other(comparison)
    return {
        "n": "documents.",
        "a": f"the metric in a, and beside it in {other}; rates are fractions.",
        "difference": f"{other} minus a. Its interval is {NOT_CORRECTED}.",
        P: f"{_tests(comparison.scores)}.",
        HOLM: f"{_tests(comparison.scores)}, corrected for all rows.",
        "changed": f"answers, + wrong in a and right in {other}, - the other way round.",
        "significant": f"whether p is below {ALPHA}, and {other} better or worse.",
    }


def _tests(scores: list[ComparedScore]) -> str:
    exact = "McNemar's exact test"
    if any(score.test == RANDOMIZATION for score in scores):
        return f"{exact} for scores of 0 and 1, else a paired permutation test"
    return exact
