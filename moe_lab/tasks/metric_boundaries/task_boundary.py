"""The boundary around a task of lm-eval 0.4, which computes its metrics itself."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask, Task

from moe_lab.tasks.metric_boundaries.boundary import (
    FAILED,
    Boundary,
    MetricFailure,
    Numbers,
    Patches,
    reason_of,
)


class TaskBoundary(Boundary):
    """The boundary around a task that computes its metrics. lm-eval asks for the documents filter
    by filter."""

    def __init__(self, name: str, task: Any, numbers: Numbers, failures: list[MetricFailure]):
        super().__init__(name, task, numbers, failures)
        self._aggregation: Callable[[], dict[str, Any]] = task.aggregation
        self._filter_names: list[str] = []
        self._num_documents = 0
        """Known, with the names of the filters, once the first document is processed."""
        self._num_processed = 0
        """Calls of `process_results` so far: one for each filter and document."""
        self._filters_of: dict[str, list[str]] = {}
        """The filters of each metric, in lm-eval's order."""
        self._num_aggregated: Counter[str] = Counter()
        """The number of filters of a metric whose score was computed so far."""

    def patches(self) -> Patches:
        """The methods of the task that run inside the boundary."""
        replaced = {
            "apply_filters": self.apply_filters,
            "process_results": self.process_results,
            "aggregation": self.aggregation,
        }
        return [(self._task, replaced)]

    def apply_filters(self) -> Any:
        """lm-eval's `apply_filters`. A filter that fails gives FAILED for all documents."""
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

    def process_results(self, document: Any, results: Sequence[Any]) -> dict[str, Any]:
        """lm-eval's `process_results`, with NaN for a metric that fails."""
        if not self._filter_names:
            self._filter_names = list(self._task.instances[0].filtered_resps)
            self._num_documents = len({instance.doc_id for instance in self._task.instances})
        # lm-eval processes all documents with the first filter, then all with the next one
        filter_name = self._filter_names[self._num_processed // self._num_documents]
        place = self._num_processed % self._num_documents
        self._num_processed += 1
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
            is_mean = aggregation.get(metric, mean) is mean
            values[metric] = self._checked(value, is_mean, metric, filter_name, place)
            filters = self._filters_of.setdefault(metric, [])
            if filter_name not in filters:
                filters.append(filter_name)
        return values

    def _process_one_by_one(
        self, document: Any, results: Sequence[Any], filter_name: str, place: int, reason: str
    ) -> dict[str, Any]:
        """The values of the metrics that do not fail. A function of the task computes all at
        once."""
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

    def _guarded(
        self, metric: str, function: Callable[[list[Any]], Any]
    ) -> Callable[[list[Any]], Any]:
        """The function of a metric, which returns NaN where it fails."""

        @wraps(function)
        def score(values: list[Any]) -> Any:
            # lm-eval computes the score of each filter in the same order
            filter_name = self._filters_of[metric][self._num_aggregated[metric]]
            self._num_aggregated[metric] += 1
            return self._score(function, values, metric, filter_name)

        return score
