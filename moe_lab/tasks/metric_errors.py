"""Metrics that fail: each has a boundary around it, and ends none of the others, nor the run's
answers.

lm-eval computes metrics after all answers, in one pass over all tasks, and any error in it would
lose all scores.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from moe_lab.errors import ResultsError
from moe_lab.tasks.metric_boundaries.boundary import MetricFailure, Numbers
from moe_lab.tasks.metric_boundaries.scorer_boundary import ScorerBoundary
from moe_lab.tasks.metric_boundaries.task_boundary import TaskBoundary


def failure_message(failures: Sequence[MetricFailure]) -> str:
    """The first failure in a line, and the names of the other metrics in another one."""
    first, *others = failures
    lines = [f"A metric could not be computed: {first}."]
    if others:
        names = ", ".join(f"{failure.metric} of {failure.task}" for failure in others[:5])
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        lines.append(f"Neither could {names}{more}.")
    return "\n".join(lines)


@contextmanager
def metric_failures(
    tasks: Mapping[str, Any], samples: Mapping[str, Numbers] | None
) -> Iterator[list[MetricFailure]]:
    """Inside the context `lm_eval.evaluate` does not end in an error of a metric or a filter.

    The score is NaN then, and the failure is in the list. Values of single documents that are no
    numbers are NaN, too. Standard errors are those of means; lm-eval has "N/A" for others, which it
    would resample 100,000 times.

    Args:
        tasks: lm-eval's tasks by name.
        samples: as of `lm_eval.evaluate`; None: all documents of each task.
    """
    failures: list[MetricFailure] = []
    with ExitStack() as restored:
        for name, task in tasks.items():
            kind = ScorerBoundary if hasattr(task, "scorers") else TaskBoundary
            boundary = kind(name, task, (samples or {}).get(name), failures)
            for patched, attributes in boundary.patches():
                _patch(patched, attributes, restored)
        yield failures


def _patch(patched: Any, attributes: Mapping[str, Any], restored: ExitStack) -> None:
    """Set attributes of an object until the stack is closed."""
    before = {name: vars(patched)[name] for name in attributes if name in vars(patched)}
    for name, value in attributes.items():
        setattr(patched, name, value)
    restored.callback(_restore, patched, attributes, before)


def _restore(patched: Any, attributes: Iterable[str], before: Mapping[str, Any]) -> None:
    """Undo `_patch`: an object has the attributes `before` again, and others of its class."""
    for name in attributes:
        delattr(patched, name)
        if name in before:
            setattr(patched, name, before[name])


def without_failed_values(
    samples: Mapping[str, Sequence[dict[str, Any]]], failures: Sequence[MetricFailure]
) -> None:
    """Remove the values that failed from lm-eval's logged samples. Those of other documents
    stay."""
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
