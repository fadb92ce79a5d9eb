"""Several rows of numbers as one: the mean over seeds, and the mean over tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moe_lab.reports.scores import Row, pair
from moe_lab.results.statistics import Interval, interval_of_mean_of_tasks, over_seeds


def mean_row(rows: Sequence[Row], scores: Mapping[str, Any]) -> Row:
    """One run with several seeds as one row: means, and the intervals over documents of those means.

    `scores` are those of `moe_lab.runs.summaries.summary`. McNemar's test is one of two runs, so there is no p.
    """
    first = rows[0]
    told = scores.get(first.task, {}).get(first.metric, {})
    values = [row.value for row in rows if row.value is not None]
    differences = [row.difference for row in rows if row.difference is not None]
    spread = over_seeds(values) if len(values) == len(rows) else {"mean": None, "std": None}
    return replace(
        first,
        run_id=" ".join(row.run_id for row in rows),
        seeds=len(rows),
        value=spread["mean"],
        stderr=None,
        std=spread["std"],
        interval=pair(told.get("ci95_documents")),
        difference=sum(differences) / len(rows) if len(differences) == len(rows) else None,
        difference_interval=pair(told.get("difference_ci95_documents")),
        p_mcnemar=None,
        flips=None,
        marks=tuple(dict.fromkeys(mark for row in rows for mark in row.marks)),
    )


def task_mean(rows: Sequence[Row | None]) -> Row | None:
    """The mean of several tasks' scores as one row, every task counting alike; None where one is missing."""
    known = [row for row in rows if row is not None]
    values = [row.value for row in known]
    if not known or len(known) < len(rows) or None in values:
        return None
    first = known[0]
    return replace(
        first,
        task="average",
        run_id=" ".join(dict.fromkeys(row.run_id for row in known)),
        n=sum(row.n or 0 for row in known),
        value=_mean(values),
        stderr=_mean_error([row.stderr for row in known]),
        std=None,
        interval=_mean_interval(values, [row.interval for row in known]),
        baseline=_mean([row.baseline for row in known]),
        difference=_mean([row.difference for row in known]),
        difference_interval=_mean_interval(
            [row.difference for row in known], [row.difference_interval for row in known]
        ),
        p_mcnemar=None,
        flips=None,
        marks=tuple(dict.fromkeys(mark for row in known for mark in row.marks)),
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
