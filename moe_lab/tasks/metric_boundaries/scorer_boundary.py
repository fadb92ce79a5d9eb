"""The boundary around a task of lm-eval 0.5, whose scorers compute its metrics."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from lm_eval.api.metrics import mean, mean_stderr
from lm_eval.api.task import Task

from moe_lab.tasks.metric_boundaries.boundary import (
    FAILED,
    Boundary,
    MetricFailure,
    Numbers,
    Patches,
    reason_of,
)


class ScorerBoundary(Boundary):
    """The boundary around a task whose scorers compute its metrics, each with one filter."""

    def __init__(self, name: str, task: Any, numbers: Numbers, failures: list[MetricFailure]):
        super().__init__(name, task, numbers, failures)
        self._place: int | None = None
        """The document whose metrics are computed now."""
        self._processed: list[Any] = []
        """The scorers that `process_results` was asked for, each once for each document."""

    def patches(self) -> Patches:
        """The methods of the task and of its scorers that run inside the boundary."""
        of_task = {"apply_filters": self.apply_filters, "process_results": self.process_results}
        patches: Patches = [(self._task, of_task)]
        for scorer in self._task.scorers:
            of_scorer = {
                "metrics": [self._guarded(metric, scorer) for metric in scorer.metrics or []],
                "score_instances": partial(self._score_instances, scorer, scorer.score_instances),
                "aggregate": partial(self._aggregate, scorer, scorer.aggregate),
            }
            patches.append((scorer, of_scorer))
        return patches

    def apply_filters(self) -> Any:
        """lm-eval's `apply_filters`. A filter that fails gives FAILED for all documents."""
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
        """lm-eval's `process_results`, with NaN for a metric that fails. None: the scorers compute
        the metrics."""
        task = self._task
        is_overridden = type(task).process_results is not Task.process_results
        if not callable(task.config.process_results) and not is_overridden:
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
        checked = {}
        for metric, value in values.items():
            checked[metric] = self._checked_values(value, metric, scorer, place)
        return checked

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
        if not isinstance(values, list):
            values = [values]
        return [self._checked(value, is_mean, metric, scorer.name, place) for value in values]

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
            checked = {}
            for metric, values in document.scores.items():
                checked[metric] = self._checked_values(values, metric, scorer, number)
            scored[number] = replace(document, scores=checked)
        return scored

    def _scored_document(self, scorer: Any, number: int, instances: list[Any]) -> Any:
        """lm-eval's scores of a document; NaN for those that fail."""
        for instance in instances:
            if any(response is FAILED for response in instance.filtered_resps[scorer.name]):
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
        if not bootstrap_iters:
            return scores, count
        for metric, of_documents in values.items():
            aggregation = overrides.get(metric) or _aggregation_of(metric, scorer)
            if aggregation is mean and len(of_documents) > 1:
                scores[f"{metric}_stderr,{scorer.name}"] = mean_stderr(of_documents)
        return scores, count


def _scored(number: int, instances: Sequence[Any], values: dict[str, Any]) -> Any:
    """lm-eval's scores of a document."""
    from lm_eval.scorers import ScoredDoc

    return ScoredDoc(number, instances[0].target, values)


def _aggregation_of(metric: str, scorer: Any) -> Any:
    """A scorer's function from a metric's values to the score; `pass@1(exact_match)` has that of
    exact_match."""
    names = (metric, metric.rstrip(")").partition("(")[2])
    for entry in scorer.metrics or []:
        if entry.name in names:
            return entry.aggregation or mean
    return mean
