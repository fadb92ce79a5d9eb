"""Means of scores: over the seeds of a run, and over tasks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moe_lab.results.marks import EQUAL, PART
from moe_lab.results.measured import Spread
from moe_lab.results.model import BASE
from moe_lab.results.over_seeds import p_over_seeds
from moe_lab.results.score import AVERAGE, BOTH, DOCUMENTS, SEEDS, Score
from moe_lab.results.seed_summary import SeedDifference, SeedScore
from moe_lab.results.statistics import (
    LEVEL,
    difference_of,
    interval_of_mean_of_tasks,
    mean_of_differences,
    over_seeds,
)
from moe_lab.results.stored import Interval


def mean_score(scores: Sequence[Score], summaries: Mapping[str, Mapping[str, SeedScore]]) -> Score:
    """The score of a run with several seeds: means, and their intervals over documents and over
    seeds, kept apart.

    `summaries` are the scores of a `SeedSummary`. `p` is that of the test over seeds and documents
    together, from five seeds on; with fewer seeds the larger p of a test over seeds and one over
    documents. Expert metrics have the test over seeds alone.
    """
    first = scores[0]
    value_spread = _spread([score.value for score in scores])
    mean = replace(
        first,
        run_id=" ".join(score.run_id for score in scores),
        seeds=len(scores),
        value=value_spread.mean,
        stderr=None,
        std=value_spread.std,
        seed_interval=value_spread.interval,
        interval=None,
        changed=None,
    )
    summary = summaries.get(first.task, {}).get(first.metric)
    if summary is None:
        return _with_mean_difference(mean, scores, None)
    mean = replace(mean, interval=summary.interval)
    if first.other == BASE:
        return _with_mean_difference(mean, scores, summary.with_base)
    return _with_mean_difference(mean, scores, summary.compared.get(first.other))


_NOT_COMPARED = SeedDifference(
    mean=math.nan,
    difference=math.nan,
    interval=None,
    p_documents=None,
    seed_interval=None,
    p_seeds=None,
    equal=False,
)
"""In the place of a comparison that a summary does not have."""


def _with_mean_difference(
    mean: Score, scores: Sequence[Score], compared: SeedDifference | None
) -> Score:
    """The mean score with the mean of its seeds' differences to another run, and with its p.

    Args:
        compared: the summary of these differences over the documents; None where they are not
            compared.
    """
    if compared is None:
        compared = _NOT_COMPARED
    difference_spread = _spread([score.difference for score in scores])
    difference = None
    p_seeds = None
    p_documents = None
    if difference_spread.mean is not None:
        differences = [score.difference for score in scores if score.difference is not None]
        difference = mean_of_differences(differences)
        p_seeds = p_over_seeds(differences)
        p_documents = compared.p_documents

    if compared.both_interval is not None:
        tested_over = BOTH
    else:
        tested_over = _stricter_test(p_seeds, p_documents)
    p = None
    if _has_test(mean, compared):
        p = _p_of_mean(compared.p_both, p_seeds, p_documents)
    return replace(
        mean,
        difference=difference,
        difference_interval=compared.interval,
        difference_seed_interval=difference_spread.interval,
        difference_both_interval=compared.both_interval,
        tested_over=tested_over,
        equal=compared.equal,
        p=p,
        test=None if p is None else SEEDS,
        marks=_marks_of_mean(scores, compared.equal),
    )


def _stricter_test(p_seeds: float | None, p_documents: float | None) -> str:
    """SEEDS or DOCUMENTS: which of the two tests has the larger p. DOCUMENTS if they are equal, or
    both None."""
    if p_seeds is None:
        return DOCUMENTS
    if p_documents is None or p_seeds > p_documents:
        return SEEDS
    return DOCUMENTS


def _has_test(mean: Score, compared: SeedDifference) -> bool:
    """Whether a mean's difference is tested: no part of a group, and not equal."""
    if PART in mean.marks:
        return False
    return not compared.equal


def _p_of_mean(
    p_both: float | None, p_seeds: float | None, p_documents: float | None
) -> float | None:
    """The p over seeds and documents together; without it the larger of the other two, or None if
    there is neither."""
    if p_both is not None:
        return p_both
    known = [p for p in (p_documents, p_seeds) if p is not None]
    return max(known, default=None)


def _spread(values: Sequence[float | None]) -> Spread:
    """The spread over seeds; without numbers where the value of a seed is missing."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return Spread()
    return over_seeds(known)


def _marks_of_mean(scores: Sequence[Score], equal: bool) -> tuple[str, ...]:
    """The marks of all parts of a mean, each once; EQUAL only if all parts are equal."""
    marks: dict[str, None] = {}
    for score in scores:
        marks |= dict.fromkeys(score.marks)
    if not equal:
        marks.pop(EQUAL, None)
    return tuple(marks)


def task_mean(scores: Sequence[Score | None]) -> Score | None:
    """The mean of the scores of several tasks, each with the same weight.

    None if there are no scores, or if a score or its value is missing. `p` belongs to the interval
    of its difference: it is 0.05 where a limit of the interval is 0.
    """
    known = [score for score in scores if score is not None and score.value is not None]
    if not known or len(known) < len(scores):
        return None
    first = known[0]
    values = [score.value for score in known]
    average = Score(
        model=first.model,
        method=first.method,
        task="average",
        metric=first.metric,
        run_id=" ".join(dict.fromkeys(score.run_id for score in known)),
        n=sum(score.n or 0 for score in known),
        seeds=first.seeds,
        value=_mean(values),
        stderr=_stderr_of_mean(known),
        interval=_mean_interval(values, [score.interval for score in known]),
        baseline=_mean([score.baseline for score in known]),
        other=first.other,
        lower_is_better=first.lower_is_better,
    )
    return _with_average_difference(average, known)


def _with_average_difference(average: Score, scores: Sequence[Score]) -> Score:
    """The average with the mean of its tasks' differences, the interval and p of this mean, and all
    marks.

    Each number is None where a task lacks the one that it is made of. Without a test, p is None,
    too: if all tasks are equal within rounding.
    """
    differences = [score.difference for score in scores]
    difference = _mean(differences)
    if difference is not None:
        difference = difference_of(difference, 0.0)
    over_documents = _mean_interval(differences, [score.difference_interval for score in scores])
    over_both = _mean_interval(differences, [score.difference_both_interval for score in scores])

    equal = all(score.equal for score in scores)
    p = None
    if not equal:
        p = _p_of_interval(difference, over_both or over_documents)
    return replace(
        average,
        difference=difference,
        difference_interval=over_documents,
        difference_both_interval=over_both,
        tested_over=BOTH if over_both else DOCUMENTS,
        equal=equal,
        p=p,
        test=None if p is None else AVERAGE,
        marks=_marks_of_mean(scores, equal),
    )


def _stderr_of_mean(scores: Sequence[Score]) -> float | None:
    """The standard error of the mean of independent scores; None if one has none."""
    errors = [score.stderr for score in scores if score.stderr is not None]
    if len(errors) < len(scores):
        return None
    return math.hypot(*errors) / len(scores)


def _p_of_interval(difference: float | None, limits: Interval | None) -> float | None:
    """Two-sided p of the hypothesis that a difference is 0, from the side of its 95% interval that
    faces 0. None without a difference or limits, and if 0 is outside of an interval without width.

    The interval of an average has sides of different lengths (Zou and Donner, 2008). Each is taken
    as 1.96 standard errors of a normal distribution.
    """
    from scipy.special import ndtr, ndtri

    if difference is None or limits is None:
        return None
    low, high = limits
    side = difference - low if difference > 0 else high - difference
    if side <= 0:
        return 1.0 if difference == 0 else None
    return float(2 * ndtr(-abs(difference) / side * ndtri((1 + LEVEL) / 2)))


def _mean(values: Sequence[Any]) -> float | None:
    """The mean; None where a value is missing."""
    if None in values:
        return None
    return sum(values) / len(values)


def _mean_interval(values: Sequence[Any], intervals: Sequence[Interval | None]) -> Interval | None:
    """The interval of the mean of tasks' values; None where a value or an interval is missing."""
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(values) or None in values:
        return None
    return interval_of_mean_of_tasks(values, known)
