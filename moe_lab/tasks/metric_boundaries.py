"""The boundaries around the metrics of a task: of lm-eval 0.4, whose tasks compute metrics, and of 0.5's scorers."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

import numpy as np
from lm_eval.api.metrics import mean, mean_stderr
from lm_eval.api.task import ConfigurableTask, Task

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
        self._name, self._task, self._failures = name, task, failures
        self._numbers = sorted(numbers) if numbers else None
        self._filter_task = task.apply_filters
        self._process = task.process_results

    def _fail(self, metric: str, filter_name: str, place: int | None, reason: str) -> None:
        """Record a failure, once for a metric and filter."""
        key = f"{metric},{filter_name}"
        if self._has_failed(key):
            return
        document = self._numbers[place] if self._numbers and place is not None else place
        self._failures.append(
            MetricFailure(task=self._name, metric=key, document=document, reason=reason)
        )

    def _has_failed(self, key: str) -> bool:
        return any(
            failure.task == self._name and failure.metric == key for failure in self._failures
        )

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
            self._fail(
                metric, filter_name, place, f"its value is {_shown(value)}, which is no number"
            )
            return math.nan
        return value

    def _score(
        self, function: Callable[[list[Any]], Any], values: list[Any], metric: str, filter_name: str
    ) -> Any:
        """The score of a metric; NaN where it fails, or failed with a document."""
        if self._has_failed(f"{metric},{filter_name}"):
            return math.nan
        try:
            found = function(values)
        except Exception as error:
            self._fail(metric, filter_name, first_failing(function, values), reason_of(error))
            return math.nan
        if not is_number(found):
            self._fail(
                metric, filter_name, None, f"its value is {_shown(found)}, which is no number"
            )
            return math.nan
        return found


class TaskBoundary(Boundary):
    """The boundary around a task that computes its metrics. lm-eval asks for the documents filter by filter."""

    def __init__(self, name: str, task: Any, numbers: Numbers, failures: list[MetricFailure]):
        super().__init__(name, task, numbers, failures)
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

    def patches(self) -> Patches:
        own = {
            "apply_filters": self.apply_filters,
            "process_results": self.process_results,
            "aggregation": self.aggregation,
        }
        return [(self._task, own)]

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
            is_mean = aggregation.get(metric, mean) is mean
            values[metric] = self._checked(value, is_mean, metric, filter_name, place)
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

    def _guarded(
        self, metric: str, function: Callable[[list[Any]], Any]
    ) -> Callable[[list[Any]], Any]:
        @wraps(function)
        def score(values: list[Any]) -> Any:
            filter_name = self._filters[metric][self._aggregated[metric]]
            self._aggregated[metric] += 1
            return self._score(function, values, metric, filter_name)

        return score


class ScorerBoundary(Boundary):
    """The boundary around a task whose scorers compute its metrics, each with one filter."""

    def __init__(self, name: str, task: Any, numbers: Numbers, failures: list[MetricFailure]):
        super().__init__(name, task, numbers, failures)
        self._place: int | None = None
        """The document whose metrics are computed now."""
        self._processed: list[Any] = []
        """The scorers that `process_results` was asked for, each once for each document."""

    def patches(self) -> Patches:
        own = {"apply_filters": self.apply_filters, "process_results": self.process_results}
        found: Patches = [(self._task, own)]
        for scorer in self._task.scorers:
            guarded = {
                "metrics": [self._guarded(metric, scorer) for metric in scorer.metrics or []],
                "score_instances": partial(self._score_instances, scorer, scorer.score_instances),
                "aggregate": partial(self._aggregate, scorer, scorer.aggregate),
            }
            found.append((scorer, guarded))
        return found

    def apply_filters(self) -> Any:
        task = self._task
        if type(task).apply_filters is not Task.apply_filters:
            return self._filter_task()
        for scorer in task.scorers:
            try:
                scorer.apply_filter(task.instances)
            except Exception as error:
                reason = reason_of(error)
                place = self._first_unfiltered(scorer.filter)
                for instance in task.instances:
                    instance.filtered_resps[scorer.name] = [FAILED]
                for metric in scorer.metrics:
                    self._fail(metric.name, scorer.name, place, f"filter {scorer.name}: {reason}")
        return None

    def process_results(self, document: Any, results: Sequence[Any]) -> dict[str, Any] | None:
        """lm-eval's `process_results`, with NaN for a metric that fails. None: the scorers compute the metrics."""
        task = self._task
        if (
            not callable(task.config.process_results)
            and type(task).process_results is Task.process_results
        ):
            return None
        numbers = list(dict.fromkeys(instance.doc_id for instance in task.instances))
        scorer = task.scorers[len(self._processed) // len(numbers)]
        place = numbers[len(self._processed) % len(numbers)]
        self._processed.append(scorer)
        if any(result is FAILED for result in results):
            return self._all_failed(scorer)
        try:
            values = self._process(document, results)
        except Exception as error:
            return self._all_failed(scorer, place, reason_of(error))
        # lm-eval asks for no other document of this scorer, which computes the metrics
        if values is None:
            self._processed += [scorer] * (len(numbers) - 1)
            return None
        return {
            metric: self._checked_values(values[metric], metric, scorer, place) for metric in values
        }

    def _all_failed(
        self, scorer: Any, place: int | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        """NaN for all metrics of a scorer; with a reason their failures are recorded."""
        names = [metric.name for metric in scorer.metrics]
        if reason is not None:
            for name in names:
                self._fail(name, scorer.name, place, reason)
        return {name: [math.nan] for name in names}

    def _checked_values(
        self, values: Any, metric: str, scorer: Any, place: int | None
    ) -> list[Any]:
        """A document's values of a metric, one for each response."""
        is_mean = _aggregation_of(metric, scorer) is mean
        each = values if isinstance(values, list) else [values]
        return [self._checked(value, is_mean, metric, scorer.name, place) for value in each]

    def _score_instances(
        self, scorer: Any, score_instances: Callable[..., Any], instances: Mapping[int, list[Any]]
    ) -> dict[int, Any]:
        """The scored documents of a scorer."""
        from lm_eval.scorers import Scorer

        scored: dict[int, Any] = {}
        if type(scorer).score_instances is Scorer.score_instances:
            for number, of_document in instances.items():
                scored[number] = self._scored_document(scorer, number, of_document)
        else:  # a scorer that scores all at once
            try:
                scored = dict(score_instances(instances))
            except Exception as error:
                reason = reason_of(error)
                for number, of_document in instances.items():
                    scored[number] = _scored(
                        number, of_document, self._all_failed(scorer, None, reason)
                    )
        for number, document in scored.items():
            values = {}
            for metric, found in document.scores.items():
                values[metric] = self._checked_values(found, metric, scorer, number)
            scored[number] = replace(document, scores=values)
        return scored

    def _scored_document(self, scorer: Any, number: int, instances: list[Any]) -> Any:
        filtered = [
            response for instance in instances for response in instance.filtered_resps[scorer.name]
        ]
        if any(response is FAILED for response in filtered):
            return _scored(number, instances, self._all_failed(scorer))
        self._place = number
        try:
            return scorer.score_doc(number, instances)
        except Exception as error:
            # of what all metrics take; each metric has a boundary of its own
            return _scored(number, instances, self._all_failed(scorer, number, reason_of(error)))

    def _guarded(self, metric: Any, scorer: Any) -> Any:
        """A metric that is NaN where its function or its reduction of several responses fails."""

        @wraps(metric.fn)
        def compute(*args: Any, **options: Any) -> Any:
            try:
                return metric.fn(*args, **options)
            except Exception as error:
                self._fail(metric.name, scorer.name, self._place, reason_of(error))
                return math.nan

        @wraps(metric.reduction)
        def reduction(reference: Any, values: list[Any]) -> Any:
            if self._has_failed(f"{metric.name},{scorer.name}"):
                return math.nan
            try:
                return metric.reduction(reference, values)
            except Exception as error:
                self._fail(metric.name, scorer.name, None, reason_of(error))
                return math.nan

        aggregation = metric.aggregation
        if aggregation is not None and aggregation is not mean:
            aggregation = partial(self._score_of, aggregation, metric.name, scorer.name)
        return replace(metric, fn=compute, reduction=reduction, aggregation=aggregation)

    def _score_of(self, function: Any, metric: str, filter_name: str, values: list[Any]) -> Any:
        return self._score(function, values, metric, filter_name)

    def _aggregate(
        self,
        scorer: Any,
        aggregate: Callable[..., tuple[dict[str, Any], int]],
        reduced: Mapping[int, Mapping[str, Any]],
        bootstrap_iters: int | None = None,
        aggregation_overrides: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, Any], int]:
        """The scores, with the standard errors of means: lm-eval would resample the others."""
        overrides = {}
        for metric, function in (aggregation_overrides or {}).items():
            guarded = partial(self._score_of, function, metric, scorer.name)
            overrides[metric] = function if function is mean else guarded
        scores, count = aggregate(reduced, bootstrap_iters=0, aggregation_overrides=overrides)
        values: dict[str, list[Any]] = {}
        for document in reduced.values():
            for metric, value in document.items():
                values.setdefault(metric, []).append(value)
        for metric, found in values.items():
            is_mean = (overrides.get(metric) or _aggregation_of(metric, scorer)) is mean
            if bootstrap_iters and is_mean and len(found) > 1:
                scores[f"{metric}_stderr,{scorer.name}"] = mean_stderr(found)
        return scores, count


def _scored(number: int, instances: Sequence[Any], values: dict[str, Any]) -> Any:
    """lm-eval's scores of a document."""
    from lm_eval.scorers import ScoredDoc

    return ScoredDoc(number, instances[0].target, values)


def _aggregation_of(metric: str, scorer: Any) -> Any:
    """A scorer's function from a metric's values to the score; `pass@1(exact_match)` has that of exact_match."""
    names = (metric, metric.rstrip(")").partition("(")[2])
    for known in scorer.metrics or []:
        if known.name in names:
            return known.aggregation or mean
    return mean


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
