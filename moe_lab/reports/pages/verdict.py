"""What a comparison with the untouched model says, in sentences that can be quoted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moe_lab.reports.pages.page import number, percent
from moe_lab.reports.scores import Score, corrected
from moe_lab.results.significance import ALPHA

BETTER, WORSE, DIFFERENT, NOT_TOLD = "better", "worse", "different", "not told from chance"
UNTOUCHED = "the untouched model"


@dataclass(frozen=True)
class Compared:
    """A score, and what it is of: method, settings and task."""

    name: str
    score: Score
    lower_is_better: bool
    """Whether a lower value of the metric is the better one."""


@dataclass(frozen=True)
class Verdict:
    """A comparison: BETTER, WORSE, DIFFERENT or NOT_TOLD, and the sentences that say why."""

    name: str
    score: Score
    outcome: str
    text: str


def verdicts(compared: Sequence[Compared]) -> list[Verdict]:
    """The verdicts on scores of one page; none on those that are not compared with the untouched model.

    The p of each decides, corrected by Holm for their number. A mean over seeds without a p is not told from chance.
    Expert metrics of one run have no p: the interval of the difference decides, which leaves out 0 where it is told.
    """
    found = [one for one in compared if one.score.difference is not None]
    scores = corrected([one.score for one in found])
    several = sum(score.p_holm is not None for score in scores) > 1
    return [_verdict(replace(one, score=score), several) for one, score in zip(found, scores, strict=True)]


def _verdict(one: Compared, several: bool) -> Verdict:
    score, outcome = one.score, NOT_TOLD
    assert score.difference is not None
    if _told(score):
        outcome = WORSE if (score.difference > 0) is one.lower_is_better else BETTER
    return made_verdict(one.name, score, outcome, several)


def made_verdict(
    name: str,
    score: Score,
    outcome: str,
    several: bool,
    against: str = UNTOUCHED,
) -> Verdict:
    """A verdict with its sentences.

    Args:
        several: whether the page has several p, so that Holm's stands beside each.
        against: what the score's baseline is.
    """
    text = f"{name}: {_numbers(score, several, against)} {_conclusion(score, outcome)}"
    return Verdict(name, score, outcome, text)


def _told(score: Score) -> bool:
    if not score.difference:
        return False
    if score.p_holm is not None:
        return score.p_holm < ALPHA
    if score.seeds > 1:
        return False
    bounds = score.difference_interval
    return bounds is not None and (bounds[0] > 0 or bounds[1] < 0)


def _numbers(score: Score, several: bool, against: str) -> str:
    """Both scores, the difference with its interval, and where it comes from."""
    rate = score.flips is not None
    show = percent if rate else number
    unit, points = ("%", " points") if rate else ("", "")
    text = f"{score.metric} {show(score.value)}{unit} against {show(score.baseline)}{unit} of {against}, "
    text += f"a difference of {show(score.difference, True)}{points}"
    if score.difference_interval is not None:
        low, high = (show(bound, True) for bound in score.difference_interval)
        text += f" (95% interval {low} to {high})"
    text += "" if score.n is None else f", on {score.n:,} documents"
    text += f" and over {score.seeds} seeds" if score.seeds > 1 else ""
    if score.flips is not None:
        text += f". {_turned(score.flips[0], 'right')} and {score.flips[1]:,} wrong"
    if score.p is not None:
        by_holm = f", {score.p_holm:.2g} by Holm" if several and score.p_holm is not None else ""
        text += f" ({_test(score)} p = {score.p:.2g}{by_holm})"
    return text + "."


def _test(score: Score) -> str:
    if score.p_mcnemar is not None:
        return "McNemar's"
    return "randomization test's" if score.p_randomization is not None else "over seeds and documents,"


def _turned(count: int, side: str) -> str:
    return f"{count:,} answer{'' if count == 1 else 's'} turned {side}"


def _conclusion(score: Score, outcome: str) -> str:
    marks = f" [{', '.join(score.marks)}]" if score.marks else ""
    if outcome == NOT_TOLD:
        return f"The difference cannot be told from chance.{marks}"
    return f"It is {outcome}, and the difference can be told from chance.{marks}"
