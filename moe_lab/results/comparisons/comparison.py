"""A comparison of stored evaluations with the first one: all scores of the command, corrected for their number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from moe_lab.errors import ConfigError
from moe_lab.results.comparisons.evaluation import Evaluation
from moe_lab.results.comparisons.scores import (
    ComparedScore,
    Values,
    compare_group,
    compare_task,
    paired_lines,
)
from moe_lab.results.samples import Sample
from moe_lab.results.significance import holm
from moe_lab.results.statistics import VERSION

# The prompts and answers of documents that are right in one evaluation and wrong in another


@dataclass(frozen=True)
class Flipped:
    """A document that is right in one evaluation and wrong in another."""

    first: Sample
    """Of the first evaluation."""
    answers: dict[str, dict[str, Sample]]
    """By evaluation and filter."""

    def to_json(self) -> dict[str, object]:
        """`prompt`, `target`, for multiple choice `choices`, and `answers` as lm-eval logged them."""
        requests = self.first.requests
        choices = [each[1] for each in requests if len(each) > 1 and isinstance(each[1], str)]
        listed = {"choices": choices} if len(choices) == len(requests) > 1 else {}
        question = {"prompt": requests[0][0] if requests else None, "target": self.first.target}
        answers = {
            key: {
                name: {"resps": each.responses, "filtered_resps": each.filtered}
                for name, each in by_filter.items()
            }
            for key, by_filter in self.answers.items()
        }
        return {**question, **listed, "answers": answers}


def flipped_documents(
    evaluations: Sequence[Evaluation], scores: Sequence[ComparedScore]
) -> dict[str, dict[int, Flipped]]:
    """By task and number all documents in the flips of `scores`."""
    first, *others = evaluations
    found: dict[str, dict[int, Flipped]] = {}
    for task, numbers in _flips(scores).items():
        documents: dict[int, Flipped] = {}
        for other in (one for one in others if task in one.samples):
            for pairs in paired_lines(first, other, task).values():
                for mine, theirs in (pair for pair in pairs if pair[0].document in numbers):
                    answers = documents.setdefault(mine.document, Flipped(mine, {})).answers
                    for one, sample in ((first, mine), (other, theirs)):
                        answers.setdefault(one.key, {})[sample.filter] = sample
        found[task] = {number: documents[number] for number in sorted(documents)}
    return found


def _flips(scores: Sequence[ComparedScore]) -> dict[str, set[int]]:
    """The documents of each task that flip in any row."""
    found: dict[str, set[int]] = {}
    for score in scores:
        for number in chain.from_iterable((score.flips or {}).values()):
            found.setdefault(score.task, set()).add(number)
    return found


# A comparison of stored evaluations with the first one: all rows of the command, corrected for their number

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Evaluations of the same documents, and which of their scores differ significantly."""

    evaluations: list[Evaluation]
    """The first is `a`; the others are compared with it."""
    scores: list[ComparedScore]
    """By evaluation, then task, then metric; groups follow their tasks."""
    notes: list[str]
    """What is left out and what else differs, one sentence each."""

    @cached_property
    def documents(self) -> dict[str, dict[int, Flipped]]:
        """The documents that flip, by task and number."""
        return flipped_documents(self.evaluations, self.scores)

    def to_json(self) -> dict[str, object]:
        """What comparison.json holds: equal for equal evaluations."""
        return {
            "schema_version": SCHEMA_VERSION,
            "statistics": VERSION,
            "evaluations": self.evaluations,
            "scores": self.scores,
            "notes": self.notes,
            "documents": self.documents,
        }


def compare(evaluations: Sequence[Evaluation]) -> Comparison:
    """Compare each evaluation with the first.

    Raises ConfigError if two have no task in common, or other documents, prompts or right answers of one.
    """
    first, *others = evaluations
    scores: list[ComparedScore] = []
    notes: list[str] = []
    for other in others:
        scores += _compare_two(first, other, notes)
    corrected = holm([score.p for score in scores])
    return Comparison(
        evaluations=list(evaluations),
        scores=[replace(score, p_holm=p) for score, p in zip(scores, corrected, strict=True)],
        notes=list(dict.fromkeys(notes)),
    )


def _compare_two(a: Evaluation, b: Evaluation, notes: list[str]) -> list[ComparedScore]:
    common = [task for task in a.samples if task in b.samples]
    if not common:
        raise ConfigError(
            f"{a.key} and {b.key} have no task in common: {', '.join(a.samples)} in {a.file}, "
            f"{', '.join(b.samples)} in {b.file}."
        )
    for one, other in ((a, b), (b, a)):
        if alone := [task for task in one.samples if task not in other.samples]:
            notes.append(f"Only in {one.key}, and not compared: {', '.join(alone)}.")
    rows: dict[tuple[str, str], tuple[ComparedScore, Values]] = {}
    versions = [one.lm_eval_version for one in (a, b)]
    if versions[0] != versions[1]:
        notes.append(f"{a.key} was made with lm_eval {versions[0]}, {b.key} with {versions[1]}.")
    for task in common:
        notes += [*_version_notes(a, b, task), *_partial_notes(a, task)]
        rows |= {(task, row.metric): (row, values) for row, values in compare_task(a, b, task, notes)}
    groups = [group for group in a.results.get("groups", {}) if group in b.results.get("groups", {})]
    found = [row for row, _ in rows.values()]
    found += [row for group in groups for row in compare_group(a, b, group, rows, notes)]
    if not found:
        raise ConfigError("\n".join([f"{a.key} and {b.key} have no score in common.", *notes]))
    return found


def _version_notes(a: Evaluation, b: Evaluation, task: str) -> list[str]:
    mine, theirs = (one.results.get("versions", {}).get(task) for one in (a, b))
    return [] if mine == theirs else [f"{task} is version {mine} in {a.key} and {theirs} in {b.key}."]


def _partial_notes(a: Evaluation, task: str) -> list[str]:
    """A note if part of the task's documents were evaluated, in both as they are the same."""
    evaluated = len({line.document for line in a.samples[task]})
    all_documents = a.results.get("n-samples", {}).get(task, {}).get("original", evaluated)
    if evaluated == all_documents:
        return []
    return [f"{task}: {evaluated:,} of {all_documents:,} documents (PARTIAL); not the benchmark's number."]
