"""Scores as columns: what they are of, value, difference and its test, notes."""

from collections.abc import Sequence

from moe_lab.reports.columns import Column, count, names, numbers, texts
from moe_lab.reports.score_line import ScoreLine
from moe_lab.results.measured import interval_text, number
from moe_lab.results.model import BASE
from moe_lab.results.score import Score
from moe_lab.results.stored import Interval


def score_columns(lines: Sequence[ScoreLine]) -> list[Column]:
    """The columns of scores: what they are of, value, difference, and notes last."""
    scores = [line.score for line in lines]
    columns = names(
        model=[score.model for score in scores],
        method=[score.method for score in scores],
        settings=[line.label for line in lines],
        task=[score.task for score in scores],
        metric=[score.metric for score in scores],
    )
    columns += value_columns(scores)

    other_runs = [_other_run(score) for score in scores]
    if set(other_runs) - {BASE, ""}:
        columns.append(texts("against", other_runs))

    columns += difference_columns(scores)
    columns.append(texts("notes", [" ".join(score.marks) for score in scores]))
    return columns


def _other_run(score: Score) -> str:
    """The run that a score is compared with; empty if it is not compared."""
    if score.difference is None:
        return ""
    return score.other.replace("_", " ")


def value_columns(scores: Sequence[Score]) -> list[Column]:
    """The value of each score with its intervals, and the numbers of seeds and documents.

    "seeds" is there if a score is a mean over seeds. Missing numbers are empty cells.
    """
    documents = [score.n for score in scores]
    values = [score.value for score in scores]
    intervals = [score.interval for score in scores]
    deviations = [score.std for score in scores]
    seed_intervals = [score.seed_interval for score in scores]

    columns = []
    if any(score.seeds > 1 for score in scores):
        seeds = [None if score.value is None else score.seeds for score in scores]
        columns.append(numbers("seeds", seeds, count, name=True))
    columns += [
        numbers("n", documents, count, name=True),
        numbers("value", values, number),
        interval_column("95% over documents", intervals, spare=2),
        numbers("std", deviations, number, spare=4),
        interval_column("95% over seeds", seed_intervals, spare=3),
    ]
    return columns


def difference_columns(scores: Sequence[Score]) -> list[Column]:
    """The difference of each score, interval and p of its test, and numbers of changed answers.

    Intervals over documents, over seeds, and over both have a column each, if there are any. A
    score that is not compared has empty cells.
    """
    columns = [numbers("difference", [score.difference for score in scores], signed_number)]
    with_interval = [score for score in scores if score.tested_interval]
    for tested_over in dict.fromkeys(score.tested_over for score in with_interval):
        intervals = []
        for score in scores:
            intervals.append(score.tested_interval if score.tested_over == tested_over else None)
        columns.append(interval_column(f"95% over {tested_over}", intervals, sign=True))

    is_corrected = any((score.family or 1) > 1 for score in scores)
    p_heading = "p (Holm)" if is_corrected else "p"
    columns.append(numbers(p_heading, [score.p_holm for score in scores], number))
    columns.append(_changed_column(scores))
    return columns


def signed_number(value: float | None) -> str:
    """The text of a difference: `number` with its sign."""
    return number(value, sign=True)


def _changed_column(scores: Sequence[Score]) -> Column:
    """Documents that only this run has right (+), and that only the other run has right (-)."""
    cells = []
    values: list[int | None] = []
    for score in scores:
        if score.changed is None:
            cells.append("")
            values.append(None)
        else:
            to_right, to_wrong = score.changed
            cells.append(f"+{to_right} -{to_wrong}")
            values.append(to_right)
    return Column(heading="changed", cells=cells, values=values, spare=4)


def interval_column(
    heading: str, intervals: Sequence[Interval | None], sign: bool = False, spare: int = 0
) -> Column:
    """A column of intervals, which a page sorts by their lower limits."""
    cells = [interval_text(interval, sign) for interval in intervals]
    lower_limits = [interval[0] if interval else None for interval in intervals]
    return Column(heading=heading, cells=cells, values=lower_limits, spare=spare)
