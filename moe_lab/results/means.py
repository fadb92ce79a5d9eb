"""Means of scores: over the seeds of a run, and over tasks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moe_lab.results.marks import EQUAL, NOT_REPRODUCIBLE, PART
from moe_lab.results.measured import Spread
from moe_lab.results.model import BASE
from moe_lab.results.score import AVERAGE, BOTH, DOCUMENTS, SEEDS, Score
from moe_lab.results.seed_summary import SeedScore
from moe_lab.results.significance import p_over_seeds
from moe_lab.results.statistics import (
    LEVEL,
    difference_of,
    interval_of_mean_of_tasks,
    mean_of_differences,
    over_seeds,
)
from moe_lab.results.stored import Interval


def mean_score(scores: Sequence[Score], summaries: Mapping[str, Mapping[str, SeedScore]]) -> Score:
    """The score of a run with several seeds: means, and their intervals over documents and over seeds, kept apart.

    `summaries` are the scores of a `SeedSummary`. `p` is that of the test over seeds and documents together, from five
    seeds on; with fewer seeds the larger p of a test over seeds and one over documents. Expert metrics have the test
    over seeds alone.
    """
    first = scores[0]
    summary = summaries.get(first.task, {}).get(first.metric)
    compared = None
    if summary is not None:
        compared = summary.with_base if first.other == BASE else summary.compared.get(first.other)
    values = [score.value for score in scores if score.value is not None]
    spread = over_seeds(values) if len(values) == len(scores) else Spread()
    differences = [score.difference for score in scores if score.difference is not None]
    moved = over_seeds(differences) if len(differences) == len(scores) else Spread()
    tests = {SEEDS: p_over_seeds(differences)}
    if compared is not None:
        tests = {DOCUMENTS: compared.p_documents, **tests}
    known = {over: p for over, p in tests.items() if p is not None and moved.mean is not None}
    larger = max(known, key=lambda over: known[over], default=DOCUMENTS)
    p = known.get(larger)
    over_both = None if compared is None else compared.both_interval
    if compared is not None and compared.p_both is not None:
        p = compared.p_both
    equal = compared is not None and compared.equal
    if PART in first.marks or equal or NOT_REPRODUCIBLE in first.marks:
        p = None
    return replace(
        first,
        run_id=" ".join(score.run_id for score in scores),
        seeds=len(scores),
        value=spread.mean,
        stderr=None,
        std=spread.std,
        interval=None if summary is None else summary.interval,
        seed_interval=spread.interval,
        difference=None if moved.mean is None else mean_of_differences(differences),
        difference_interval=None if compared is None else compared.interval,
        difference_seed_interval=moved.interval,
        difference_both_interval=over_both,
        tested_over=larger if over_both is None else BOTH,
        equal=equal,
        p=p,
        test=None if p is None else SEEDS,
        changed=None,
        marks=_marks_of_mean(scores, equal),
    )


def _marks_of_mean(scores: Sequence[Score], equal: bool) -> tuple[str, ...]:
    """The marks of all parts of a mean. It is equal where all of its parts are."""
    marks = dict.fromkeys(mark for score in scores for mark in score.marks)
    return tuple(mark for mark in marks if mark != EQUAL or equal)


def task_mean(scores: Sequence[Score | None]) -> Score | None:
    """The mean of the scores of several tasks, each with the same weight; None where one is missing.

    `p` belongs to the interval of its difference: it is 0.05 where a limit of the interval is 0.
    """
    known = [score for score in scores if score is not None]
    values = [score.value for score in known]
    if not known or len(known) < len(scores) or None in values:
        return None
    first = known[0]
    equal = all(score.equal for score in known)
    differences = [score.difference for score in known]
    errors = [score.stderr for score in known if score.stderr is not None]
    stderr = None
    if len(errors) == len(known):
        stderr = math.hypot(*errors) / len(known)  # of independent tasks
    difference = _mean(differences)
    if difference is not None:
        difference = difference_of(difference, 0.0)
    over_documents = _mean_interval(differences, [score.difference_interval for score in known])
    over_both = _mean_interval(differences, [score.difference_both_interval for score in known])
    untested = equal or any(NOT_REPRODUCIBLE in score.marks for score in known)
    p = None if untested else _p_of_interval(difference, over_both or over_documents)
    return Score(
        model=first.model,
        method=first.method,
        task="average",
        metric=first.metric,
        run_id=" ".join(dict.fromkeys(score.run_id for score in known)),
        n=sum(score.n or 0 for score in known),
        seeds=first.seeds,
        value=_mean(values),
        stderr=stderr,
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


def _p_of_interval(difference: float | None, limits: Interval | None) -> float | None:
    """Two-sided p of the hypothesis that a difference is 0, from the side of its 95% interval that faces 0.

    The interval of an average has sides of different lengths (Zou and Donner, 2008). Each is taken as 1.96 standard
    errors of a normal distribution.
    """
    from scipy.special import ndtr, ndtri

    if difference is None or limits is None:
        return None
    side = difference - limits[0] if difference > 0 else limits[1] - difference
    if side <= 0:
        return 1.0 if difference == 0 else None
    return float(2 * ndtr(-abs(difference) / side * ndtri((1 + LEVEL) / 2)))


def _mean(values: Sequence[Any]) -> float | None:
    return None if None in values else sum(values) / len(values)


def _mean_interval(values: Sequence[Any], intervals: Sequence[Interval | None]) -> Interval | None:
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(values) or None in values:
        return None
    return interval_of_mean_of_tasks(values, known)
