"""Compares the scores of one task in two evaluations, example by example."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from moe_lab.errors import first_line
from moe_lab.results.comparisons.aggregates import aggregate_of, reproduces, score_of
from moe_lab.results.comparisons.evaluation import Evaluation
from moe_lab.results.comparisons.pairing import paired_examples
from moe_lab.results.comparisons.partial import (
    ChangedExamples,
    ExamplePair,
    PartialComparison,
    joined,
)
from moe_lab.results.paired import paired
from moe_lab.results.rounding import Rounding
from moe_lab.results.samples import is_missing
from moe_lab.results.score import Score
from moe_lab.results.scores import compared
from moe_lab.results.statistics import Aggregate
from moe_lab.results.task_scores import reported


def compare_task(a: Evaluation, b: Evaluation, task: str) -> PartialComparison:
    """The scores of a task that both evaluations report, and notes on those that only one has.

    Raises ConfigError if the documents, prompts or right answers differ.
    """
    pairs = paired_examples(a, b, task)
    rounding = rounding_of(a, b)
    notes = []
    if any(sample.doc_hash is None for sample in a.samples[task]):
        notes.append(
            f"{task}: the log of {a.key} has no doc_hash, so documents are paired by their order."
        )
    metrics_a = reported(a.results.scores(task))
    metrics_b = reported(b.results.scores(task))
    for evaluation, metrics, other_metrics in (
        (a, metrics_a, metrics_b),
        (b, metrics_b, metrics_a),
    ):
        missing = [metric for metric in metrics if metric not in other_metrics]
        if missing:
            notes.append(
                f"Only in {evaluation.key}, and not compared: {' '.join(missing)} of {task}."
            )
    parts = [PartialComparison(notes=notes)]
    for metric in metrics_a:
        if metric in metrics_b:
            parts.append(_compare_metric(a, b, task, metric, pairs, rounding))
    return joined(parts)


def _compare_metric(
    a: Evaluation,
    b: Evaluation,
    task: str,
    metric: str,
    pairs_by_filter: Mapping[str, Sequence[ExamplePair]],
    rounding: Rounding,
) -> PartialComparison:
    """One score of a task, lm-eval's `metric,filter`; a note without a score where it cannot be
    compared."""
    for evaluation in (a, b):
        if _is_infinite(evaluation.results.scores(task)[metric]):
            return _left_out(f"{metric} of {task}, which is infinite in {evaluation.key}.")

    aggregate = aggregate_of(a, task, metric)
    if not all(reproduces(evaluation, task, metric, aggregate) for evaluation in (a, b)):
        return _left_out(
            f"{metric} of {task}, whose score does not follow from the logged documents by the "
            "function that the file names."
        )
    name, _, filter_name = metric.partition(",")
    all_pairs = pairs_by_filter[filter_name]
    pairs = _with_values(all_pairs, name)
    notes = []
    if len(pairs) < len(all_pairs):
        without = len(all_pairs) - len(pairs)
        notes.append(f"{metric} of {task}: {without:,} documents without a value are left out.")
    if not pairs:
        return PartialComparison(notes=notes)

    values = _values(pairs, name)
    lower_is_better = _lower_is_better(a, b, task, metric)
    try:
        difference = paired(
            values.b,
            values.a,
            aggregate,
            lower_is_better=lower_is_better is True,
            equal=rounding.equal_examples(values.a, values.b, values.words),
        )
    except Exception as error:  # of the metric's own function, on resampled documents
        reason = f"{type(error).__name__}: {first_line(error)}"
        return joined([PartialComparison(notes=notes), _left_out(f"{metric} of {task}: {reason}.")])

    score = _score(a, b, task, metric, values, aggregate)
    score = compared(replace(score, lower_is_better=lower_is_better), difference)
    changed_examples = {}
    if score.changed is not None:
        changed = _changed_examples(pairs, values, lower_is_better is True)
        changed_examples[score.comparison] = changed
    return PartialComparison(scores=[score], changed_examples=changed_examples, notes=notes)


def _with_values(pairs: Sequence[ExamplePair], name: str) -> list[ExamplePair]:
    """The pairs of which both samples have a value of the metric `name`."""
    with_values = []
    for pair in pairs:
        if not any(is_missing(sample.values.get(name)) for sample in pair):
            with_values.append(pair)
    return with_values


class _Values(NamedTuple):
    """A metric's values by example, in both evaluations."""

    a: list[Any]
    b: list[Any]
    words: list[int]
    """`Sample.scored_words`."""


def _values(pairs: Sequence[ExamplePair], name: str) -> _Values:
    """The values of the metric `name` in pairs that have one."""
    return _Values(
        a=[sample_a.values[name] for sample_a, _ in pairs],
        b=[sample_b.values[name] for _, sample_b in pairs],
        words=[sample_a.scored_words for sample_a, _ in pairs],
    )


def _score(
    a: Evaluation,
    b: Evaluation,
    task: str,
    metric: str,
    values: _Values,
    aggregate: Aggregate | None,
) -> Score:
    """The score of `b` next to that of `a`, over the examples that have a value in both."""
    return Score(
        model=b.label,
        method="",
        task=task,
        metric=metric,
        run_id=b.key,
        n=len(values.b),
        value=float(score_of(values.b, aggregate)),
        baseline=float(score_of(values.a, aggregate)),
        other=a.key,
        marks=b.marks,
    )


def _left_out(what: str) -> PartialComparison:
    """A note alone: what is not compared, and why."""
    return PartialComparison(notes=[f"Not compared: {what}"])


def _is_infinite(score: Any) -> bool:
    """Whether a score is infinite, as the mean is where a log-likelihood is minus infinity."""
    return isinstance(score, float) and math.isinf(score)


def _lower_is_better(a: Evaluation, b: Evaluation, task: str, metric: str) -> bool | None:
    """Whether a lower score is better; None where neither file says."""
    for evaluation in (a, b):
        better = evaluation.results.better(task, metric)
        if better is not None:
            return not better
    return None


def _changed_examples(
    pairs: Sequence[ExamplePair], values: _Values, lower_is_better: bool
) -> ChangedExamples:
    """The documents whose scores of 0 and 1 differ."""
    up: list[ExamplePair] = []
    down: list[ExamplePair] = []
    for pair, value_a, value_b in zip(pairs, values.a, values.b, strict=True):
        if value_b > value_a:
            up.append(pair)
        elif value_b < value_a:
            down.append(pair)
    if lower_is_better:
        return {"to_right": down, "to_wrong": up}
    return {"to_right": up, "to_wrong": down}


def rounding_of(a: Evaluation, b: Evaluation) -> Rounding:
    """Which values of two evaluations are equal within rounding.

    In float32 the bound is computed. Else it is the larger measured bound of the two; without any,
    only equal values are equal.
    """
    bounds = [a.rounding, b.rounding]
    if all(bound.dtype == "float32" for bound in bounds):
        return a.rounding
    measured = [bound.measured for bound in bounds if bound.measured is not None]
    return Rounding(None, max(measured, default=None))
