"""A boundary around the metrics of a task: a metric that fails is recorded, and has the value
NaN."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moe_lab.errors import MoeLabError, first_line, is_out_of_memory

Numbers = Sequence[int] | None
"""The document numbers that lm-eval evaluates of a task; None: all."""
FAILED = object()
"""The filtered response of a filter that failed."""
Patches = list[tuple[Any, dict[str, Any]]]
"""Objects of lm-eval, and the attributes that they have inside the boundary."""


@dataclass(frozen=True, kw_only=True)
class MetricFailure:
    """A metric without a score."""

    task: str
    metric: str
    """lm-eval's `metric,filter`."""
    document: int | None
    """The first document that it fails with; None: no single one."""
    reason: str

    def __str__(self) -> str:
        document = "" if self.document is None else f", document {self.document}"
        return f"{self.task}, {self.metric}{document}: {self.reason}"


class Boundary:
    """What the boundaries of both versions share."""

    def __init__(self, name: str, task: Any, numbers: Numbers, failures: list[MetricFailure]):
        self._name = name
        self._task = task
        self._failures = failures
        self._numbers = sorted(numbers) if numbers else None
        self._filter_task = task.apply_filters
        self._process = task.process_results

    def _fail(self, metric: str, filter_name: str, place: int | None, reason: str) -> None:
        """Record a failure, once for a metric and filter."""
        key = f"{metric},{filter_name}"
        if self._has_failed(key):
            return
        document = place
        if self._numbers is not None and place is not None:
            document = self._numbers[place]
        self._failures.append(
            MetricFailure(task=self._name, metric=key, document=document, reason=reason)
        )

    def _has_failed(self, key: str) -> bool:
        failed = [(failure.task, failure.metric) for failure in self._failures]
        return (self._name, key) in failed

    def _first_unfiltered(self, output_filter: Any) -> int | None:
        """The place of the first document that the filter fails with alone."""
        for instance in self._task.instances:
            try:
                output_filter.apply([instance])
            except Exception:
                return int(instance.doc_id)
        return None

    def _checked(
        self, value: Any, is_mean: bool, metric: str, filter_name: str, place: int | None
    ) -> Any:
        """A document's value of a metric; NaN where the score is a mean and the value no number."""
        if getattr(value, "shape", None) == ():  # a number of numpy or torch
            value = value.item()
        if is_mean and not is_number(value):
            self._fail(metric, filter_name, place, _no_number(value))
            return math.nan
        return value

    def _score(
        self, function: Callable[[list[Any]], Any], values: list[Any], metric: str, filter_name: str
    ) -> Any:
        """The score of a metric; NaN where it fails, or failed with a document."""
        if self._has_failed(f"{metric},{filter_name}"):
            return math.nan
        try:
            score = function(values)
        except Exception as error:
            self._fail(metric, filter_name, first_failing(function, values), reason_of(error))
            return math.nan
        if not is_number(score):
            self._fail(metric, filter_name, None, _no_number(score))
            return math.nan
        return score


def first_failing(function: Callable[[list[Any]], Any], values: list[Any]) -> int:
    """The place of a value with which a function begins to fail: without it and those after it, it
    does not.

    The function fails with all values.
    """
    works = 0
    fails = len(values)
    while fails - works > 1:
        middle = (works + fails) // 2
        try:
            function(values[:middle])
            works = middle
        except Exception:
            fails = middle
    return fails - 1


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, bool | int | float | np.number | np.bool_) and bool(np.isfinite(value))


def reason_of(error: Exception) -> str:
    """The kind and first line of an error of a metric. Raises the error itself if it is none of a
    metric's."""
    if isinstance(error, MoeLabError | MemoryError) or is_out_of_memory(error):
        raise error
    return f"{type(error).__name__}: {first_line(error)}"


def _no_number(value: Any) -> str:
    """The reason of a failure for a value that is no number, at most 60 characters of it."""
    text = repr(value)
    if len(text) > 60:
        text = f"{text[:60]}..."
    return f"its value is {text}, which is no number"
