"""The intervals of a run's scores, and their differences to another run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from moe_lab.results.measured import Paired
from moe_lab.results.paired import paired
from moe_lab.results.rounding import Rounding
from moe_lab.results.run_parts import Comparisons
from moe_lab.results.samples import Log, Sample, Values, logged_values, metric_values
from moe_lab.results.statistics import score_interval
from moe_lab.results.stored import Interval
from moe_lab.results.task_scores import aggregation
from moe_lab.tasks.metric_boundaries.boundary import MetricFailure, reason_of

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StoredScores:
    """The stored run that another run is compared with."""

    run_id: str
    results: Mapping[str, Mapping[str, Any]]
    """lm-eval's scores by task."""
    samples: Mapping[str, Sequence[Sample]]
    rounding: float | None
    """The measured bound of rounding, in nats."""


class Scored:
    """The values of all documents by task and metric, without metrics that could not be computed.

    A metric whose own aggregation fails on resampled documents has no interval, and joins the
    failures.
    """

    def __init__(self, tasks: Mapping[str, Any], samples: Log, failures: list[MetricFailure]):
        self._tasks = tasks
        self._failures = failures
        failed = {(failure.task, failure.metric) for failure in failures}
        self._values: dict[str, Values] = {}
        for name in tasks:
            self._values[name] = {}
            for metric, values in logged_values(samples[name]).items():
                if (name, metric) not in failed:
                    self._values[name][metric] = values

    def intervals(self) -> dict[str, dict[str, Interval | None]]:
        """The 95% interval of each score by task and metric; None for one document, and where the
        metric's own aggregation fails."""
        intervals: dict[str, dict[str, Interval | None]] = {}
        for name, task in self._tasks.items():
            intervals[name] = {}
            for metric, by_document in self._values[name].items():
                compute = partial(
                    score_interval, list(by_document.values()), aggregation(task, metric)
                )
                intervals[name][metric] = self._computed(name, metric, "its interval", compute)
        return intervals

    def differences(self, other: StoredScores, rounding: Rounding) -> Comparisons:
        """The differences to another run, by task and metric, on the documents that both have.

        A metric is left out if the other run lacks it or could not compute it, if no document has a
        value in both, and if the metric's own aggregation fails.
        """
        differences: Comparisons = {}
        for name in self._tasks:
            differences[name] = {}
            other_values = metric_values(other.samples[name])
            other_scores = other.results.get(name, {})
            words = {sample.document: sample.scored_words for sample in other.samples[name]}
            for metric in self._values[name]:
                has_failed = metric in other_scores and other_scores[metric] is None
                if metric not in other_values or has_failed:
                    continue
                compute = partial(
                    self._difference, name, metric, other_values[metric], words, rounding
                )
                difference = self._computed(name, metric, "its difference", compute)
                if difference is not None:
                    differences[name][metric] = difference
        return differences

    def _difference(
        self,
        name: str,
        metric: str,
        other_values: Mapping[int, Any],
        words: Mapping[int, int],
        rounding: Rounding,
    ) -> Paired | None:
        """The difference of a metric to another run; None if they share no document.

        Args:
            other_values: the other run's values by document.
            words: the number of scored words by document, for `Rounding.equal_examples`.
        """
        task = self._tasks[name]
        by_document = self._values[name][metric]
        documents = [document for document in by_document if document in other_values]
        if not documents:
            return None
        values = [by_document[document] for document in documents]
        before = [other_values[document] for document in documents]
        return paired(
            values,
            before,
            aggregation(task, metric),
            lower_is_better=task.higher_is_better().get(metric.partition(",")[0]) is False,
            equal=rounding.equal_examples(
                values, before, [words[document] for document in documents]
            ),
        )

    def _computed(self, task: str, metric: str, what: str, compute: Callable[[], T]) -> T | None:
        """What `compute` returns. If it raises, a failure is noted, and None returned.

        Args:
            what: what is computed, for the failure: "its interval".
        """
        try:
            return compute()
        except Exception as error:
            reason = f"{what}: {reason_of(error)}"
            failure = MetricFailure(task=task, metric=metric, document=None, reason=reason)
            self._failures.append(failure)
            return None
