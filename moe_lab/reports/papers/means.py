"""The mean of several scores: over seeds, and over tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moe_lab.reports.scores import Score, pair
from moe_lab.results.significance import p_over_seeds
from moe_lab.results.statistics import Interval, interval_of_mean_of_tasks, over_seeds


def mean_score(scores: Sequence[Score], summary: Mapping[str, Any]) -> Score:
    """The score of a run with several seeds: means, and their intervals over documents and over seeds, kept apart.

    `summary` has the `scores` of `moe_lab.runs.summaries.summary`. `p_mcnemar` and `p_randomization` compare two runs
    and are None. `p_seeds` is that of the test over seeds and documents together, from five seeds on; with fewer seeds
    the larger p of a test over seeds and one over documents. Expert metrics have the test over seeds alone.
    """
    first = scores[0]
    mean = summary.get(first.task, {}).get(first.metric, {})
    values = [score.value for score in scores if score.value is not None]
    differences = [score.difference for score in scores if score.difference is not None]
    unknown = {"mean": None, "std": None, "ci95": None}
    spread = over_seeds(values) if len(values) == len(scores) else unknown
    moved = over_seeds(differences) if len(differences) == len(scores) else unknown
    tests = (
        mean.get("difference_p_documents"),
        p_over_seeds(differences) if moved["mean"] is not None else None,
    )
    larger = None if tests[1] is None else max(p for p in tests if p is not None)
    return replace(
        first,
        run_id=" ".join(score.run_id for score in scores),
        seeds=len(scores),
        value=spread["mean"],
        stderr=None,
        std=spread["std"],
        interval=pair(mean.get("ci95_documents")),
        seed_interval=pair(spread["ci95"]),
        difference=moved["mean"],
        difference_interval=pair(mean.get("difference_ci95_both") or mean.get("difference_ci95_documents")),
        difference_seed_interval=pair(moved["ci95"]),
        p_mcnemar=None,
        p_randomization=None,
        p_seeds=mean.get("difference_p_both", larger),
        flips=None,
        marks=tuple(dict.fromkeys(mark for score in scores for mark in score.marks)),
    )


def task_mean(scores: Sequence[Score | None]) -> Score | None:
    """The mean of the scores of several tasks, each with the same weight; None where one is missing."""
    known = [score for score in scores if score is not None]
    values = [score.value for score in known]
    if not known or len(known) < len(scores) or None in values:
        return None
    first = known[0]
    return replace(
        first,
        task="average",
        run_id=" ".join(dict.fromkeys(score.run_id for score in known)),
        n=sum(score.n or 0 for score in known),
        value=_mean(values),
        stderr=_mean_error([score.stderr for score in known]),
        std=None,
        seed_interval=None,
        difference_seed_interval=None,
        interval=_mean_interval(values, [score.interval for score in known]),
        baseline=_mean([score.baseline for score in known]),
        difference=_mean([score.difference for score in known]),
        difference_interval=_mean_interval(
            [score.difference for score in known], [score.difference_interval for score in known]
        ),
        p_mcnemar=None,
        p_randomization=None,
        p_seeds=None,
        flips=None,
        marks=tuple(dict.fromkeys(mark for score in known for mark in score.marks)),
    )


def _mean(values: Sequence[Any]) -> float | None:
    return None if None in values else sum(values) / len(values)


def _mean_error(errors: Sequence[float | None]) -> float | None:
    """Standard error of the mean of independent tasks' scores."""
    known = [error for error in errors if error is not None]
    return math.hypot(*known) / len(known) if len(known) == len(errors) else None


def _mean_interval(values: Sequence[Any], intervals: Sequence[Interval | None]) -> Interval | None:
    known = [one for one in intervals if one is not None]
    complete = len(known) == len(values) and None not in values
    return interval_of_mean_of_tasks(values, known) if complete else None
