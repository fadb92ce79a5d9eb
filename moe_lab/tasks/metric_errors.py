"""One boundary around each metric of each task: a metric that fails ends none of the others, nor the run's answers.

lm-eval computes metrics after all answers, in one pass over all tasks, and any error in it would lose all scores.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask, Task

from moe_lab.errors import MoeLabError, ResultsError, first_line, is_out_of_memory

Numbers = Sequence[int] | None
"""The document numbers that lm-eval evaluates of a task; None: all."""
FAILED = object()
"""The filtered response of a filter that failed."""
PATCHED = ("apply_filters", "process_results", "aggregation")
"""The methods of a task that the boundary is around."""


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


def failure_message(failures: Sequence[MetricFailure]) -> str:
    """The first failure in a line, and the names of the other metrics in another one."""
    first, *others = failures
    lines = [f"A metric could not be computed: {first}."]
    if others:
        names = ", ".join(f"{other.metric} of {other.task}" for other in others[:5])
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        lines.append(f"Neither could {names}{more}.")
    return "\n".join(lines)


@contextmanager
def metric_failures(
    tasks: Mapping[str, Any], samples: Mapping[str, Numbers] | None
) -> Iterator[list[MetricFailure]]:
    """Inside the context `lm_eval.evaluate` does not end in an error of a metric or a filter.

    The score is NaN then, and the failure is in the list. Values of single documents that are no numbers are NaN, too.
    Standard errors are those of means; lm-eval has "N/A" for others, which it would resample 100,000 times.

    Args:
        tasks: lm-eval's tasks by name.
        samples: as of `lm_eval.evaluate`; None: all documents of each task.
    """
    failures: list[MetricFailure] = []
    with ExitStack() as restored:
        for name, task in tasks.items():
            own = {method: vars(task)[method] for method in PATCHED if method in vars(task)}
            boundary = _Boundary(name, task, (samples or {}).get(name), failures)
            for method in PATCHED:
                setattr(task, method, getattr(boundary, method))
            restored.callback(_restore, task, own)
        yield failures


def _restore(task: Any, own: Mapping[str, Any]) -> None:
    for method in PATCHED:
        delattr(task, method)
        if method in own:
            setattr(task, method, own[method])


class _Boundary:
    """The boundary around one task. lm-eval asks for the documents filter by filter."""

    def __init__(self, name: str, task: Any, numbers: Numbers, failures: list[MetricFailure]):
        self._name, self._task, self._failures = name, task, failures
        self._numbers = sorted(numbers) if numbers else None
        self._filter_task = task.apply_filters
        self._process = task.process_results
        self._aggregation: Callable[[], dict[str, Any]] = task.aggregation
        self._filter_names: list[str] = []
        self._count = 0
        """The number of documents, known with the filters once the first result is asked for."""
        self._documents = 0
        """Documents that were asked for so far, those of all filters together."""
        self._filters: dict[str, list[str]] = {}
        """The filters of each metric, in lm-eval's order."""
        self._aggregated: Counter[str] = Counter()
        """The number of filters of a metric that were aggregated so far."""

    def _fail(self, metric: str, filter_name: str, place: int | None, reason: str) -> None:
        """Record a failure, once for a metric and filter."""
        key = f"{metric},{filter_name}"
        if self._has_failed(key):
            return
        document = self._numbers[place] if self._numbers and place is not None else place
        self._failures.append(MetricFailure(task=self._name, metric=key, document=document, reason=reason))

    def _has_failed(self, key: str) -> bool:
        return any(failure.task == self._name and failure.metric == key for failure in self._failures)

    def apply_filters(self) -> Any:
        task = self._task
        if type(task).apply_filters not in (Task.apply_filters, ConfigurableTask.apply_filters):
            return self._filter_task()
        for ensemble in task._filters:
            try:
                ensemble.apply(task._instances)
            except Exception as error:
                reason = reason_of(error)
                place = self._first_unfiltered(ensemble)
                for instance in task._instances:
                    instance.filtered_resps[ensemble.name] = FAILED
                for metric in self._aggregation():
                    self._fail(metric, ensemble.name, place, f"filter {ensemble.name}: {reason}")
        return None

    def _first_unfiltered(self, ensemble: Any) -> int | None:
        """The place of the first document that the filter fails with alone."""
        for instance in self._task._instances:
            try:
                ensemble.apply([instance])
            except Exception:
                return int(instance.doc_id)
        return None

    def process_results(self, document: Any, results: Sequence[Any]) -> dict[str, Any]:
        """lm-eval's `process_results`, with NaN for a metric that fails."""
        if not self._filter_names:
            self._filter_names = list(self._task.instances[0].filtered_resps)
            self._count = len({instance.doc_id for instance in self._task.instances})
        filter_name = self._filter_names[self._documents // self._count]
        place = self._documents % self._count
        self._documents += 1
        values: dict[str, Any]
        if any(result is FAILED for result in results):
            values = dict.fromkeys(self._aggregation(), math.nan)
        else:
            try:
                values = dict(self._process(document, results))
            except Exception as error:
                reason = reason_of(error)
                values = self._process_one_by_one(document, results, filter_name, place, reason)
        aggregation = self._aggregation()
        for metric, value in values.items():
            if getattr(value, "shape", None) == ():  # a number of numpy or torch
                value = value.item()
                values[metric] = value
            if aggregation.get(metric, mean) is mean and not is_number(value):
                self._fail(metric, filter_name, place, f"its value is {_shown(value)}, which is no number")
                values[metric] = math.nan
            filters = self._filters.setdefault(metric, [])
            if filter_name not in filters:
                filters.append(filter_name)
        return values

    def _process_one_by_one(
        self, document: Any, results: Sequence[Any], filter_name: str, place: int, reason: str
    ) -> dict[str, Any]:
        """The values of the metrics that do not fail. A function of the task computes all at once."""
        task = self._task
        functions = getattr(task, "_metric_fn_list", {})
        if not isinstance(task, ConfigurableTask) or callable(task.config.process_results):
            for metric in self._aggregation():
                self._fail(metric, filter_name, place, reason)
            return dict.fromkeys(self._aggregation(), math.nan)
        values: dict[str, Any] = {}
        try:
            for metric, function in functions.items():
                task._metric_fn_list = {metric: function}
                try:
                    values |= self._process(document, results)
                except Exception as error:
                    self._fail(metric, filter_name, place, reason_of(error))
                    values[metric] = math.nan
        finally:
            task._metric_fn_list = functions
        return values

    def aggregation(self) -> dict[str, Any]:
        """lm-eval's functions from values to scores, which return NaN where they fail."""
        guarded = {}
        for metric, function in self._aggregation().items():
            # lm-eval knows the standard error of its own mean, whose values are numbers here
            guarded[metric] = function if function is mean else self._guarded(metric, function)
        return guarded

    def _guarded(self, metric: str, function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        @wraps(function)
        def score(values: list[Any]) -> Any:
            filter_name = self._filters[metric][self._aggregated[metric]]
            self._aggregated[metric] += 1
            if self._has_failed(f"{metric},{filter_name}"):
                return math.nan
            try:
                found = function(values)
            except Exception as error:
                self._fail(metric, filter_name, first_failing(function, values), reason_of(error))
                return math.nan
            if not is_number(found):
                self._fail(metric, filter_name, None, f"its value is {_shown(found)}, which is no number")
                return math.nan
            return found

        return score


def without_failed_values(
    samples: Mapping[str, Sequence[dict[str, Any]]], failures: Sequence[MetricFailure]
) -> None:
    """Remove the values that failed from lm-eval's logged samples. Those of other documents stay."""
    for failure in failures:
        metric, _, filter_name = failure.metric.partition(",")
        for sample in samples[failure.task]:
            value = sample.get(metric)
            if sample["filter"] == filter_name and isinstance(value, float) and math.isnan(value):
                del sample[metric]
                sample["metrics"] = [name for name in sample["metrics"] if name != metric]


def check_scores(failures: Sequence[MetricFailure]) -> None:
    """Raise ResultsError if a metric has failed."""
    if failures:
        raise ResultsError(failure_message(failures))


def first_failing(function: Callable[[list[Any]], Any], values: list[Any]) -> int:
    """The place of a value with which a function begins to fail: without it and those after it, it does not.

    The function fails with all values.
    """
    works, fails = 0, len(values)
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
    """The kind and first line of an error of a metric. Raises the error itself if it is none of a metric's."""
    if isinstance(error, MoeLabError | MemoryError) or is_out_of_memory(error):
        raise error
    return f"{type(error).__name__}: {first_line(error)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
