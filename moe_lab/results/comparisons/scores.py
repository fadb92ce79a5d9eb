"""The scores of two evaluations, matched example by example."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from moe_lab.errors import ConfigError
from moe_lab.results.comparisons.evaluation import Evaluation
from moe_lab.results.measured import Interval, Measured
from moe_lab.results.rounding import Rounding
from moe_lab.results.samples import Sample, reported
from moe_lab.results.shapes import leaves
from moe_lab.results.significance import ALPHA, paired
from moe_lab.results.statistics import Aggregate

# One metric of a task in two evaluations of the same documents

MOST_PASTED = 300
"""Numbers of documents that a message lists."""
MCNEMAR, RANDOMIZATION = "McNemar", "randomization"
EQUAL = "equal within rounding"


@dataclass(frozen=True, kw_only=True)
class ComparedScore(Measured):
    """The scores of two runs on one task and metric, and their difference. Rates are fractions."""

    other: str
    """The key of the evaluation that is compared with `a`."""
    task: str
    """A task, or a group whose score is the mean over its documents."""
    metric: str
    """lm-eval's `metric,filter`."""
    n: int
    """Documents that have the metric in both."""
    a: float
    b: float
    """The scores of the first and of the other evaluation over these documents."""
    difference: float
    """`b` minus `a`."""
    interval: Interval | None
    """95% interval of the difference over documents (`results/statistics.py`); None with fewer than two."""
    equal: bool
    """Whether no document differs by more than rounding. Then there is no p."""
    p: float | None
    test: str | None
    """McNemar's exact test for 0/1 scores, a permutation test for others."""
    p_holm: float | None
    """`p`, corrected by Holm for all rows of the comparison."""
    higher_is_better: bool | None
    """None if neither result says."""
    to_right: int | None
    """Documents that are wrong in `a` and right in the other; None for scores that are not 0 or 1."""
    to_wrong: int | None
    flips: dict[str, list[int]] | None
    """{"to_right": document numbers, "to_wrong": document numbers}; None for a group, and for other scores."""

    def to_json(self) -> dict[str, object]:
        return super().to_json() | {"told_from_chance": self.told_from_chance, "verdict": self.verdict}

    @property
    def told_from_chance(self) -> bool:
        """Whether the corrected p is below 0.05."""
        return self.p_holm is not None and self.p_holm < ALPHA

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `different`, `equal within rounding` or `not significant`."""
        if self.equal:
            return EQUAL
        if not self.told_from_chance:
            return "not significant"
        if self.higher_is_better is None:
            return "different"
        return "better" if (self.difference > 0) == self.higher_is_better else "worse"


def compared_score(
    other: str,
    task: str,
    metric: str,
    values: Values,
    *,
    aggregate: Aggregate | None,
    higher_is_better: bool | None,
    documents: Sequence[int] | None,
) -> ComparedScore:
    """The row of paired values, before the correction.

    Args:
        values: of each document its value in `a` and in the other, and whether they are equal within rounding.
        aggregate: the function from values to the score; None is the mean.
        documents: the number of each document, or None where flips are not listed.
    """
    mine, theirs, equal = (list(column) for column in zip(*values, strict=True))
    found = paired(theirs, mine, aggregate, lower_is_better=higher_is_better is False, equal=equal)
    binary = found.changed is not None
    p = found.p_mcnemar if binary else found.p_permutation
    assert found.difference is not None
    score = aggregate or (lambda each: float(sum(each)) / len(each))
    return ComparedScore(
        other=other,
        task=task,
        metric=metric,
        n=len(values),
        a=float(score(mine)),
        b=float(score(theirs)),
        difference=found.difference,
        interval=found.interval,
        equal=found.equal,
        p=p,
        test=None if p is None else MCNEMAR if binary else RANDOMIZATION,
        p_holm=p,
        higher_is_better=higher_is_better,
        to_right=found.to_right,
        to_wrong=found.to_wrong,
        flips=_flips(values, documents, higher_is_better) if binary and documents is not None else None,
    )


def _flips(values: Values, documents: Sequence[int], higher_is_better: bool | None) -> dict[str, list[int]]:
    """The documents that changed each way."""
    sign = -1 if higher_is_better is False else 1
    changes = [
        (document, sign * (theirs - mine))
        for document, (mine, theirs, _) in zip(documents, values, strict=True)
    ]
    return {
        "to_right": [document for document, change in changes if change > 0],
        "to_wrong": [document for document, change in changes if change < 0],
    }


# Pairs the documents of two evaluations by content, and refuses those that were asked other questions
#
# lm-eval writes a hash of each document (`doc_hash`), of its prompt and of its right answer. Equal documents of one
# task are paired in their order.

Pair = tuple[Sample, Sample]
"""One document in the sample logs of two evaluations."""
Key = tuple[str | None, int]
"""The hash of a document, and how many equal ones stand before it."""
SHOWN = 80
"""Characters of a document or prompt that an error shows."""


def paired_lines(a: Evaluation, b: Evaluation, task: str) -> dict[str, list[Pair]]:
    """{filter: pairs of lines} of a task, in the order of `a`'s document numbers.

    Raises ConfigError if the documents, the prompts or the right answers of the two differ, naming the first.
    """
    mine, theirs = _by_filter(a.samples[task]), _by_filter(b.samples[task])
    pairs = {}
    for name in (name for name in mine if name in theirs):
        _check_documents(a, b, task, mine[name], theirs[name])
        pairs[name] = [(line, theirs[name][key]) for key, line in mine[name].items()]
        _check_prompts(a, b, task, pairs[name])
        _check_targets(a, b, task, pairs[name])
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


def _check_documents(
    a: Evaluation, b: Evaluation, task: str, mine: dict[Key, Sample], theirs: dict[Key, Sample]
) -> None:
    alone = {
        a.key: [line for key, line in mine.items() if key not in theirs],
        b.key: [line for key, line in theirs.items() if key not in mine],
    }
    if not any(alone.values()):
        return
    counts = " and ".join(
        f"{len(lines):,} of {total:,} are only in {key}"
        for (key, lines), total in zip(alone.items(), (len(mine), len(theirs)), strict=True)
        if lines
    )
    firsts = [
        f"The first only in {key} is document {lines[0].document}: {_shown(lines[0])}"
        for key, lines in alone.items()
        if lines
    ]
    common = [line.document for key, line in mine.items() if key in theirs]
    wanted = common or [line.document for line in mine.values()]
    advice = f"Evaluate both on the same documents{_to_paste(sorted(wanted))}."
    raise ConfigError("\n".join([f"Other documents of {task}: {counts}.", *firsts, advice]))


def _to_paste(documents: Sequence[int]) -> str:
    """`samples=` of these documents; for many of them the keys that choose documents."""
    if len(documents) > MOST_PASTED:
        return " (limit=, samples=, data_dir=)"
    return f": samples=[{','.join(map(str, documents))}]"


def _check_prompts(a: Evaluation, b: Evaluation, task: str, pairs: Sequence[Pair]) -> None:
    other = [pair for pair in pairs if pair[0].prompt_hash != pair[1].prompt_hash]
    if not other:
        return
    prompts = [_prompt(line) for line in other[0]]
    start = next((i for i, (x, y) in enumerate(zip_longest(*prompts)) if x != y), 0)
    lines = [
        f"Other prompts of {task}: {len(other):,} of {len(pairs):,} documents. The first is document "
        f"{other[0][0].document}, from character {start} on:",
        *(f"  {one.key}: {text[start : start + SHOWN]!r}" for one, text in zip((a, b), prompts, strict=True)),
    ]
    shots = [one.results.get("n-shot", {}).get(task) for one in (a, b)]
    if shots[0] != shots[1]:
        lines.append(f"{a.key} has {shots[0]} few-shot examples, {b.key} has {shots[1]}.")
    lines.append("Evaluate both with the same num_fewshot, fewshot_seed and chat template.")
    raise ConfigError("\n".join(lines))


def _check_targets(a: Evaluation, b: Evaluation, task: str, pairs: Sequence[Pair]) -> None:
    other = [pair for pair in pairs if pair[0].target_hash != pair[1].target_hash]
    if other:
        mine, theirs = (str(line.target)[:SHOWN] for line in other[0])
        raise ConfigError(
            f"Other right answers of {task}: {len(other):,} of {len(pairs):,} documents. The first is document "
            f"{other[0][0].document}: {mine!r} in {a.key}, {theirs!r} in {b.key}."
        )


def _prompt(line: Sample) -> str:
    """The prompt of the document's first request, which `prompt_hash` is of."""
    return str(line.requests[0][0] if line.requests else None)


def _shown(line: Sample) -> str:
    return json.dumps(line.question, ensure_ascii=False)[:SHOWN]


# The metrics of a task in two evaluations, paired document by document

Values = list[tuple[Any, Any, bool]]
"""Of each document its value in `a` and in the other, and whether they are equal within rounding."""


def compare_task(
    a: Evaluation, b: Evaluation, task: str, notes: list[str]
) -> list[tuple[ComparedScore, Values]]:
    """The rows of a task, each with its values; what is left out is added to `notes`.

    Raises ConfigError if the documents, prompts or right answers differ.
    """
    pairs, rounding = paired_lines(a, b, task), rounding_of(a, b)
    mine, theirs = reported(a.scores(task)), reported(b.scores(task))
    for one, keys, others in ((a, mine, theirs), (b, theirs, mine)):
        if alone := [key for key in keys if key not in others]:
            notes.append(f"Only in {one.key}, and not compared: {' '.join(alone)} of {task}.")
    rows = []
    for metric in (key for key in mine if key in theirs):
        aggregate = aggregate_of(a, task, metric)
        if not all(_reproduces(one, task, metric, aggregate) for one in (a, b)):
            notes.append(
                f"Not compared: {metric} of {task}, whose score does not follow from the logged documents by the "
                "function that the file names."
            )
            continue
        name, _, filter_name = metric.partition(",")
        measured = _with_metric(pairs[filter_name], name)
        if left := len(pairs[filter_name]) - len(measured):
            notes.append(f"{metric} of {task}: {left:,} documents without a value are left out.")
        if not measured:
            continue
        values = [
            (x.values[name], y.values[name], rounding.equal(x.values[name], y.values[name], x.scored_words))
            for x, y in measured
        ]
        row = compared_score(
            b.key,
            task,
            metric,
            values,
            aggregate=aggregate,
            higher_is_better=_first(one.higher_is_better(task, metric) for one in (a, b)),
            documents=[x.document for x, _ in measured],
        )
        rows.append((row, values))
    return rows


def rounding_of(a: Evaluation, b: Evaluation) -> Rounding:
    """Which values of two evaluations are equal within rounding."""
    if all(one.rounding.dtype == "float32" for one in (a, b)):
        return a.rounding
    known = [one.rounding.measured for one in (a, b) if one.rounding.measured is not None]
    return Rounding(None, max(known, default=None))


def aggregate_of(evaluation: Evaluation, task: str, metric: str) -> Aggregate | None:
    """lm-eval's function from a metric's values to the score.

    It is the one that the task's configuration names for the metric, else the metric's own.
    None for the mean, and for a metric that the configuration does not list.
    """
    from lm_eval.api import metrics
    from lm_eval.api.registry import aggregation_registry, metric_agg_registry

    name = metric.partition(",")[0]
    listed = evaluation.results["configs"][task].get("metric_list") or []
    entry = next((entry for entry in listed if entry.get("metric") == name), None)
    if entry is None:
        return None
    named = entry.get("aggregation")
    found: Any = aggregation_registry.get(named, None) if named else metric_agg_registry.get(name, None)
    return None if found is metrics.mean else found


def _reproduces(evaluation: Evaluation, task: str, metric: str, aggregate: Aggregate | None) -> bool:
    """Whether the function turns the logged values into the stored score."""
    name, _, filter_name = metric.partition(",")
    lines = [line for line in evaluation.samples[task] if line.filter == filter_name]
    values = [line.values[name] for line in lines if name in line.values]
    stored = evaluation.scores(task)[metric]
    if not values or not isinstance(stored, int | float):
        return False
    if aggregate is None and not all(isinstance(value, int | float) for value in values):
        return False
    score = aggregate(values) if aggregate else sum(values) / len(values)
    return math.isclose(score, stored, rel_tol=1e-6, abs_tol=1e-9)


def _with_metric(pairs: Sequence[Pair], name: str) -> list[Pair]:
    return [(x, y) for x, y in pairs if name in x.values and name in y.values]


def _first(values: Any) -> bool | None:
    return next((value for value in values if value is not None), None)


# The score of a group of tasks in two evaluations, where it is the mean over all documents (MMLU)


def compare_group(
    a: Evaluation,
    b: Evaluation,
    group: str,
    values: Mapping[tuple[str, str], tuple[ComparedScore, Values]],
    notes: list[str],
) -> list[ComparedScore]:
    """The rows of a group, of all its documents as one sample; what is left out is added to `notes`.

    Args:
        values: the row and values of each (task, metric).
    """
    rows = []
    for metric in (key for key in reported(a.scores(group)) if key in b.scores(group)):
        parts = [
            values.get((task, metric))
            for task in leaves(a.results, a.samples, group)
            if metric in a.scores(task)
        ]
        known = [part for part in parts if part is not None]
        pooled = [pair for _, pairs in known for pair in pairs]
        if len(known) < len(parts) or not _is_mean(a, b, group, metric, pooled):
            notes.append(
                f"Not compared: {metric} of the group {group}, which is no mean over documents. Its tasks are."
            )
            continue
        better = known[0][0].higher_is_better
        rows.append(
            compared_score(
                b.key, group, metric, pooled, aggregate=None, higher_is_better=better, documents=None
            )
        )
    return rows


def _is_mean(a: Evaluation, b: Evaluation, group: str, metric: str, pooled: Values) -> bool:
    """Whether both scores of the group are the mean of the values."""
    if not all(isinstance(value, int | float) for pair in pooled for value in pair[:2]):
        return False
    return all(
        math.isclose(
            sum(pair[side] for pair in pooled) / len(pooled), one.scores(group)[metric], rel_tol=1e-6
        )
        for side, one in enumerate((a, b))
    )
