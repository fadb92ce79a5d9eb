"""Means of scores: over the seeds of a run, and over tasks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moe_lab.results.marks import EQUAL, NOT_REPRODUCIBLE, PART
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
    elif p_seeds is not None and (p_documents is None or p_seeds > p_documents):
        tested_over = SEEDS
    else:
        tested_over = DOCUMENTS

    marks = mean.marks
    if PART in marks or NOT_REPRODUCIBLE in marks or compared.equal:
        p = None
    elif compared.p_both is not None:
        p = compared.p_both
    else:
        p = max((known for known in (p_documents, p_seeds) if known is not None), default=None)
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


def _spread(values: Sequence[float | None]) -> Spread:
    """The spread over seeds; empty where the value of a seed is missing."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return Spread()
    return over_seeds(known)


def _marks_of_mean(scores: Sequence[Score], equal: bool) -> tuple[str, ...]:
    """The marks of all parts of a mean. It is equal where all of its parts are."""
    marks: dict[str, None] = {}
    for score in scores:
        marks |= dict.fromkeys(score.marks)
    if not equal:
        marks.pop(EQUAL, None)
    return tuple(marks)


def task_mean(scores: Sequence[Score | None]) -> Score | None:
    """The mean of the scores of several tasks, each with the same weight; None if a score or its
    value is missing.

    `p` belongs to the interval of its difference: it is 0.05 where a limit of the interval is 0.
    """
    known = [score for score in scores if score is not None]
    values = [score.value for score in known]
    if not known or len(known) < len(scores) or None in values:
        return None
    first = known[0]
    differences = [score.difference for score in known]
    difference = _mean(differences)
    if difference is not None:
        difference = difference_of(difference, 0.0)
    over_documents = _mean_interval(differences, [score.difference_interval for score in known])
    over_both = _mean_interval(differences, [score.difference_both_interval for score in known])
    equal = all(score.equal for score in known)
    if equal or any(NOT_REPRODUCIBLE in score.marks for score in known):
        p = None
    else:
        p = _p_of_interval(difference, over_both or over_documents)
    return Score(
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
        difference=difference,
        difference_interval=over_documents,
        difference_both_interval=over_both,
        tested_over=BOTH if over_both else DOCUMENTS,
        equal=equal,
        p=p,
        test=None if p is None else AVERAGE,
        other=first.other,
        lower_is_better=first.lower_is_better,
        marks=_marks_of_mean(known, equal),
    )


def _stderr_of_mean(scores: Sequence[Score]) -> float | None:
    """The standard error of the mean of independent scores; None if one has none."""
    errors = [score.stderr for score in scores if score.stderr is not None]
    if len(errors) < len(scores):
        return None
    return math.hypot(*errors) / len(scores)


def _p_of_interval(difference: float | None, limits: Interval | None) -> float | None:
    """Two-sided p of the hypothesis that a difference is 0, from the side of its 95% interval that
    faces 0.

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
    """None where one is missing."""
    if None in values:
        return None
    return sum(values) / len(values)


def _mean_interval(values: Sequence[Any], intervals: Sequence[Interval | None]) -> Interval | None:
    """None where one is missing."""
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(values) or None in values:
        return None
    return interval_of_mean_of_tasks(values, known)
