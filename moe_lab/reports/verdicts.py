"""Comparisons in words: the verdict on one difference as a sentence, on several as counts."""

from collections.abc import Iterable, Sequence

from moe_lab.reports.score_line import ScoreLine
from moe_lab.results.marks import PART
from moe_lab.results.measured import interval_text, number
from moe_lab.results.model import BASE
from moe_lab.results.score import BETTER, DIFFERENT, EQUAL_RUNS, NOT_SIGNIFICANT, WORSE, Score

EXPLAINED = (
    "Differences are on the same documents. McNemar's exact test decides at 5%, and a paired "
    "permutation test where scores are not 0 or 1; p is corrected by Holm for the comparisons of "
    "the same question in the command that computed it; intervals are those of one comparison, not "
    "corrected. A mean over five seeds or more has one test over seeds and documents; with fewer "
    "seeds the larger p of a test over each decides. Expert metrics of one run have no test: the "
    "95% interval of the difference decides, uncorrected."
)
OUTCOMES = (BETTER, WORSE, DIFFERENT, EQUAL_RUNS, NOT_SIGNIFICANT)
"""Verdicts in the order in which they are listed."""
ALWAYS_LISTED = (BETTER, WORSE, NOT_SIGNIFICANT)


def has_verdict(score: Score) -> bool:
    """Whether a difference is tested or judged by its interval.

    One of several seeds and a part of a group have no verdict.
    """
    if score.difference is None or PART in score.marks:
        return False
    is_one_of_several_seeds = score.p is not None and score.p_holm is None
    return not is_one_of_several_seeds


def sentence(line: ScoreLine, against: str | None = None) -> str:
    """The verdict on a difference: its outcome, size, interval and p.

    Args:
        against: the name of the run that it is compared with; by default the base model or
            `score.other`.
    """
    score = line.score
    other_run = against or _name_of_other(score)
    if score.verdict == EQUAL_RUNS:
        return f"{line.name} equals {other_run} within rounding in every document ({score.metric})."

    text = f"{line.name} {_outcome(score.verdict, other_run)}: {score.metric} "
    text += number(score.difference, sign=True)
    if score.tested_interval is not None:
        text += f", 95% over {score.tested_over} {interval_text(score.tested_interval, sign=True)}"
    if score.p is not None:
        text += f", p {score.p:.2g}"
        if score.p_holm is not None and (score.family or 1) > 1:
            text += f", {score.p_holm:.2g} by Holm"
    if score.changed is not None:
        to_right, to_wrong = score.changed
        text += f"; changed answers +{to_right:,} -{to_wrong:,}"
    return f"{text}."


def _name_of_other(score: Score) -> str:
    """The run that a score is compared with, in words."""
    if score.other == BASE:
        return "the base model"
    return score.other.replace("_", " ")


def _outcome(verdict: str, other_run: str) -> str:
    """The verdict as a part of a sentence: "is better than the base model"."""
    if verdict == DIFFERENT:
        return f"differs from {other_run}"
    if verdict == NOT_SIGNIFICANT:
        return f"does not differ significantly from {other_run}"
    return f"is {verdict} than {other_run}"


def by_outcome(lines: Iterable[ScoreLine]) -> dict[str, list[ScoreLine]]:
    """The lines by verdict, in the order of OUTCOMES. Only ALWAYS_LISTED may have no lines."""
    all_lines = list(lines)
    listed = {}
    for outcome in OUTCOMES:
        of_outcome = [line for line in all_lines if line.score.verdict == outcome]
        if of_outcome or outcome in ALWAYS_LISTED:
            listed[outcome] = of_outcome
    return listed


def conclusion(lines: Sequence[ScoreLine], against: str | None = None) -> str:
    """One comparison as its sentence, several as the number of each outcome; empty without any."""
    if not lines:
        return ""
    if len(lines) == 1:
        return sentence(lines[0], against)

    counts = []
    for outcome, of_outcome in by_outcome(lines).items():
        counts.append(f"{len(of_outcome)} {outcome}")
    other_runs = against or _name_of_all_others(lines)
    return f"Of {len(lines)} comparisons with {other_runs}: {', '.join(counts)}."


def _name_of_all_others(lines: Sequence[ScoreLine]) -> str:
    """The runs that the lines are compared with."""
    if all(line.score.other == BASE for line in lines):
        return "the base model"
    return "the base model and its controls"
