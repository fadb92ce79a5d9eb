"""A comparison of stored evaluations with the first one: the scores of both, matched example by example."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import sub
from typing import Any

from moe_lab.errors import ConfigError, first_line
from moe_lab.models.lm_eval_internals import aggregation_of_metric
from moe_lab.results.comparisons.evaluation import Evaluation
from moe_lab.results.rounding import Rounding
from moe_lab.results.samples import Sample, is_missing, reported
from moe_lab.results.scores import ComparisonKey, Score, compared, pooled
from moe_lab.results.significance import holm, paired
from moe_lab.results.statistics import VERSION, Aggregate

SCHEMA_VERSION = 3
Pair = tuple[Sample, Sample]
"""One document in the sample logs of two evaluations."""
Changed = dict[str, list[Pair]]
"""{"to_right": documents, "to_wrong": documents}"""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Evaluations of the same documents, and which of their scores differ significantly."""

    evaluations: list[Evaluation]
    """The first is `a`; the others are compared with it."""
    scores: list[Score]
    """By evaluation, whose key is the `run_id`, then task, then metric; groups follow their tasks."""
    changed: Mapping[ComparisonKey, Changed]
    """The documents whose answers changed, of each task's scores of 0 and 1."""
    notes: list[str]
    """What is left out and what else differs, one sentence each."""

    def to_json(self) -> dict[str, object]:
        """What comparison.json holds: equal for equal evaluations."""
        numbers = {
            comparison: {
                way: [mine.document for mine, _ in pairs] for way, pairs in changed.items()
            }
            for comparison, changed in self.changed.items()
        }
        return {
            "schema_version": SCHEMA_VERSION,
            "statistics": VERSION,
            "evaluations": self.evaluations,
            "scores": [
                {"run": score.run_id, **score.columns()}
                | {"verdict": score.verdict, "changed": numbers.get(score.comparison)}
                for score in self.scores
            ],
            "notes": self.notes,
        }


def compare(evaluations: Sequence[Evaluation]) -> Comparison:
    """Compare each evaluation with the first.

    Raises ConfigError if two have no task in common, or other documents, prompts or right answers of one.
    """
    first, *others = evaluations
    notes: list[str] = []
    changed: dict[ComparisonKey, Changed] = {}
    scores = [score for other in others for score in _compare_two(first, other, changed, notes)]
    corrected = holm([score.p for score in scores])
    family = sum(p is not None for p in corrected)
    return Comparison(
        evaluations=list(evaluations),
        scores=[
            replace(score, p_holm=p, family=family)
            for score, p in zip(scores, corrected, strict=True)
        ],
        changed=changed,
        notes=list(dict.fromkeys(notes)),
    )


def _compare_two(
    a: Evaluation, b: Evaluation, changed: dict[ComparisonKey, Changed], notes: list[str]
) -> list[Score]:
    common = [task for task in a.samples if task in b.samples]
    if not common:
        raise ConfigError(
            f"{a.key} and {b.key} have no task in common: {', '.join(a.samples)} in {a.file}, "
            f"{', '.join(b.samples)} in {b.file}."
        )
    for one, other in ((a, b), (b, a)):
        if alone := [task for task in one.samples if task not in other.samples]:
            notes.append(f"Only in {one.key}, and not compared: {', '.join(alone)}.")
    versions = [one.lm_eval_version for one in (a, b)]
    if versions[0] != versions[1]:
        notes.append(f"{a.key} was made with lm_eval {versions[0]}, {b.key} with {versions[1]}.")
    scores: dict[tuple[str, str], Score] = {}
    for task in common:
        mine, theirs = (one.results.task_versions.get(task) for one in (a, b))
        if mine != theirs:
            notes.append(f"{task} is version {mine} in {a.key} and {theirs} in {b.key}.")
        evaluated = len({line.document for line in a.samples[task]})
        every = a.results.n_samples.get(task, {}).get("original", evaluated)
        if evaluated != every:
            part = f"{evaluated:,} of {every:,} documents (PARTIAL)"
            notes.append(f"{task}: {part}; not the benchmark's number.")
        scores |= {
            (task, score.metric): score for score in compare_task(a, b, task, changed, notes)
        }
    groups = [group for group in a.results.groups if group in b.results.groups]
    of_groups = [score for group in groups for score in _compare_group(a, b, group, scores, notes)]
    found = [*scores.values(), *of_groups]
    if not found:
        raise ConfigError("\n".join([f"{a.key} and {b.key} have no score in common.", *notes]))
    return found


def compare_task(
    a: Evaluation, b: Evaluation, task: str, changed: dict[ComparisonKey, Changed], notes: list[str]
) -> list[Score]:
    """The scores of a task, before the correction.

    What is left out is added to `notes`, the documents whose answers changed to `changed`. Raises ConfigError if the
    documents, prompts or right answers differ.
    """
    pairs, rounding = paired_lines(a, b, task), rounding_of(a, b)
    if any(line.doc_hash is None for line in a.samples[task]):
        notes.append(
            f"{task}: the log of {a.key} has no doc_hash, so documents are paired by their order."
        )
    mine, theirs = reported(a.results.scores(task)), reported(b.results.scores(task))
    for one, keys, others in ((a, mine, theirs), (b, theirs, mine)):
        if lone := [key for key in keys if key not in others]:
            notes.append(f"Only in {one.key}, and not compared: {' '.join(lone)} of {task}.")
    scores = []
    for metric in (key for key in mine if key in theirs):
        infinite = [one for one in (a, b) if _is_infinite(one.results.scores(task)[metric])]
        if infinite:
            notes.append(
                f"Not compared: {metric} of {task}, which is infinite in {infinite[0].key}."
            )
            continue
        aggregate = aggregate_of(a, task, metric)
        if not all(_reproduces(one, task, metric, aggregate) for one in (a, b)):
            notes.append(
                f"Not compared: {metric} of {task}, whose score does not follow from the logged documents by the "
                "function that the file names."
            )
            continue
        name, _, filter_name = metric.partition(",")
        measured = []
        for x, y in pairs[filter_name]:
            if not is_missing(x.values.get(name)) and not is_missing(y.values.get(name)):
                measured.append((x, y))
        if left := len(pairs[filter_name]) - len(measured):
            notes.append(f"{metric} of {task}: {left:,} documents without a value are left out.")
        if not measured:
            continue
        before, after = (
            [line.values[name] for line in lines] for lines in zip(*measured, strict=True)
        )
        equal = rounding.equals(before, after, [x.scored_words for x, _ in measured])
        known = [
            better for one in (a, b) if (better := one.results.better(task, metric)) is not None
        ]
        lower = not known[0] if known else None
        try:
            found = paired(after, before, aggregate, lower_is_better=lower is True, equal=equal)
        except Exception as error:  # of the metric's own function, on resampled documents
            notes.append(
                f"Not compared: {metric} of {task}: {type(error).__name__}: {first_line(error)}."
            )
            continue
        value_of = aggregate or (lambda values: sum(values) / len(values))
        alone = Score(
            model=b.label,
            method="",
            task=task,
            metric=metric,
            run_id=b.key,
            n=len(measured),
            value=float(value_of(after)),
            baseline=float(value_of(before)),
            other=a.key,
            lower_is_better=lower,
            marks=b.marks,
        )
        score = compared(alone, found)
        scores.append(score)
        if score.changed is not None:
            moved = list(zip(measured, map(sub, after, before), strict=True))
            up, down = ([pair for pair, by in moved if by * sign > 0] for sign in (1, -1))
            right, wrong = (down, up) if lower else (up, down)
            changed[score.comparison] = {"to_right": right, "to_wrong": wrong}
    return scores


def _compare_group(
    a: Evaluation,
    b: Evaluation,
    group: str,
    scores: Mapping[tuple[str, str], Score],
    notes: list[str],
) -> list[Score]:
    """The scores of a group of tasks, of all its documents as one sample; what is left out is added to `notes`."""
    found = []
    for metric in (
        key for key in reported(a.results.scores(group)) if key in b.results.scores(group)
    ):
        tasks = [
            task for task in a.results.leaves(a.samples, group) if metric in a.results.scores(task)
        ]
        parts = [score for task in tasks if (score := scores.get((task, metric)))]
        whole = None
        if len(parts) == len(tasks) > 0 and all(part.changed for part in parts):
            n = sum(part.n or 0 for part in parts)
            whole = pooled(
                replace(parts[0], task=group, n=n, value=b.results.scores(group)[metric]), parts
            )
        if whole is None or not math.isclose(
            whole.baseline or 0.0, a.results.scores(group)[metric], abs_tol=1e-9
        ):
            notes.append(
                f"Not compared: {metric} of the group {group}, which is no share of its documents. Its tasks are."
            )
        else:
            found.append(whole)
    return found


# Pairs the documents of two evaluations by content, and refuses those that were asked other questions
#
# lm-eval writes a hash of each document (`doc_hash`), of its prompt and of its right answer. Equal documents of one
# task are paired in their order.

Key = tuple[str | None, int]
"""The hash of a document, and how many equal ones stand before it."""


def paired_lines(a: Evaluation, b: Evaluation, task: str) -> dict[str, list[Pair]]:
    """{filter: pairs of lines} of a task, in the order of `a`'s document numbers.

    Raises ConfigError if the documents, the prompts or the right answers of the two differ.
    """
    mine, theirs = _by_filter(a.samples[task]), _by_filter(b.samples[task])
    pairs = {}
    for name in (name for name in mine if name in theirs):
        own, other = mine[name], theirs[name]
        mine_only, theirs_only = (
            len(one.keys() - two.keys()) for one, two in ((own, other), (other, own))
        )
        if mine_only or theirs_only:
            raise ConfigError(
                f"Other documents of {task}: {mine_only:,} of {len(own):,} are only in {a.key}, {theirs_only:,} of "
                f"{len(other):,} only in {b.key}.\nEvaluate both on the same documents (limit=, samples=, data_dir=)."
            )
        pairs[name] = [(line, other[key]) for key, line in own.items()]
        for what, hashed in (("prompts", "prompt_hash"), ("right answers", "target_hash")):
            if others := [
                x.document for x, y in pairs[name] if getattr(x, hashed) != getattr(y, hashed)
            ]:
                raise ConfigError(
                    f"Other {what} of {task}: {len(others):,} of {len(own):,} documents. The first is document "
                    f"{others[0]}.\nEvaluate both with the same task, num_fewshot, fewshot_seed and chat template."
                )
    return pairs


def _by_filter(lines: Sequence[Sample]) -> dict[str, dict[Key, Sample]]:
    """The lines of each filter by document, in the order of document numbers."""
    found: dict[str, dict[Key, Sample]] = {}
    before: Counter[tuple[str, str | None]] = Counter()
    for line in sorted(lines, key=lambda line: line.document):
        name, document = line.filter, line.doc_hash
        found.setdefault(name, {})[document, before[name, document]] = line
        before[name, document] += 1
    return found


# The function from the values of documents to a score


def rounding_of(a: Evaluation, b: Evaluation) -> Rounding:
    """Which values of two evaluations are equal within rounding."""
    bounds = [a.rounding, b.rounding]
    if all(bound.dtype == "float32" for bound in bounds):
        return a.rounding
    measured = [bound.measured for bound in bounds if bound.measured is not None]
    return Rounding(None, max(measured, default=None))


def aggregate_of(evaluation: Evaluation, task: str, metric: str) -> Aggregate | None:
    """lm-eval's function from a metric's values to the score.

    It is the one that the task's configuration names for the metric, else the metric's own.
    None for the mean, and for a metric that the configuration does not list.
    """
    from lm_eval.api import metrics
    from lm_eval.api.registry import aggregation_registry

    name = metric.partition(",")[0]
    listed = evaluation.results.configs[task].get("metric_list") or []
    entry = next((entry for entry in listed if entry.get("metric") == name), None)
    if entry is None:
        return None
    named = entry.get("aggregation")
    found: Any = aggregation_registry.get(named, None) if named else aggregation_of_metric(name)
    return None if found is metrics.mean else found


def _is_infinite(score: Any) -> bool:
    """Whether a score is infinite, as the mean is where a log-likelihood is minus infinity."""
    return isinstance(score, float) and math.isinf(score)


def _reproduces(
    evaluation: Evaluation, task: str, metric: str, aggregate: Aggregate | None
) -> bool:
    """Whether the function turns the logged values into the stored score."""
    name, _, filter_name = metric.partition(",")
    lines = [line for line in evaluation.samples[task] if line.filter == filter_name]
    values = [line.values[name] for line in lines if not is_missing(line.values.get(name))]
    stored = evaluation.results.scores(task)[metric]
    if not values or not isinstance(stored, int | float):
        return False
    if aggregate is None and not all(isinstance(value, int | float) for value in values):
        return False
    try:
        score = aggregate(values) if aggregate else sum(values) / len(values)
    except Exception:  # lm-eval writes arrays as texts, which its own functions do not take
        return False
    return math.isclose(score, stored, rel_tol=1e-6, abs_tol=1e-9)
