"""The result of a comparison with the base model, in sentences that can be quoted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moe_lab.reports.pages.page import number, percent
from moe_lab.results.scores import (
    BASE,
    BETTER,
    DIFFERENT,
    EQUAL_RUNS,
    NOT_SIGNIFICANT,
    PART,
    WORSE,
    Score,
)

BASE_MODEL = "the base model"
TESTS = {
    "McNemar": "McNemar's",
    "permutation": "permutation test's",
    "seeds": "over seeds and documents,",
    "average": "over tasks,",
}


@dataclass(frozen=True)
class Verdict:
    """A comparison in sentences."""

    score: Score
    text: str


def verdicts(named: Iterable[tuple[str, Score]]) -> list[Verdict]:
    """The verdicts on the scores of one page, each with its name. Only scores compared with another run have one.

    A single one of several seeds has none, because the mean over the seeds has one.
    """
    return [made_verdict(name, score) for name, score in named if has_verdict(score)]


def has_verdict(score: Score) -> bool:
    """Whether a score is compared with another run, and is neither one of several seeds nor a part of a group."""
    one_of_several_seeds = score.p is not None and score.p_holm is None
    return score.difference is not None and not one_of_several_seeds and PART not in score.marks


def by_outcome(found: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """The verdicts by outcome. The keys `different` and `equal within rounding` are absent without such a verdict."""
    rare = [kind for kind in (DIFFERENT, EQUAL_RUNS) if any(one.score.verdict == kind for one in found)]
    kinds = [BETTER, WORSE, *rare, NOT_SIGNIFICANT]
    return {kind: [one for one in found if one.score.verdict == kind] for kind in kinds}


def made_verdict(name: str, score: Score, against: str | None = None) -> Verdict:
    """A verdict with its sentences.

    Args:
        name: of the score: method, settings and task.
        against: the name of the run that it is compared with; by default the base model or `score.other`.
    """
    against = against or (BASE_MODEL if score.other == BASE else score.other.replace("_", " "))
    show, unit, points = (number, "", "") if score.flips is None else (percent, "%", " points")
    text = f"{name}: {score.metric} {show(score.value)}{unit} against {show(score.baseline)}{unit} of {against}, "
    text += f"a difference of {show(score.difference, True)}{points}"
    if score.tested_interval is not None:
        low, high = (show(bound, True) for bound in score.tested_interval)
        text += f" (95% interval over {score.tested_over} {low} to {high})"
    text += "" if score.n is None else f", on {score.n:,} documents"
    text += f" and over {score.seeds} seeds" if score.seeds > 1 else ""
    if score.flips is not None:
        right, wrong = score.flips
        text += f". {right:,} answer{'' if right == 1 else 's'} turned right and {wrong:,} wrong"
    if score.p is not None:
        by_holm = ""
        if (score.family or 1) > 1 and score.p_holm is not None:
            by_holm = f", {score.p_holm:.2g} by Holm for {score.family} {score.question or 'comparisons'}"
        text += f" ({TESTS[score.test or '']} p = {score.p:.2g}{by_holm})"
    conclusions = {
        EQUAL_RUNS: "They are equal within rounding in every document.",
        NOT_SIGNIFICANT: "The difference is not statistically significant.",
    }
    significant = f"It is {score.verdict}, and the difference is statistically significant."
    text += f". {conclusions.get(score.verdict, significant)}"
    return Verdict(score, text + (f" [{', '.join(score.marks)}]" if score.marks else ""))
