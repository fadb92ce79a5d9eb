"""A comparison of stored evaluations with the first one: all scores of the command, corrected for their number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

from moe_lab.errors import ConfigError
from moe_lab.results.comparisons.evaluation import Evaluation, Line
from moe_lab.results.comparisons.scores import (
    ComparedScore,
    Values,
    compare_group,
    compare_task,
    paired_lines,
)
from moe_lab.results.significance import holm
from moe_lab.results.statistics import VERSION

# The prompts and answers of documents that are right in one evaluation and wrong in another


def flipped_documents(
    evaluations: Sequence[Evaluation], scores: Sequence[ComparedScore]
) -> dict[str, dict[str, Any]]:
    """{task: {document number: document}} of all documents in the flips of `scores`.

    A document has `prompt`, `target`, for multiple choice `choices`, and `answers`: by evaluation and filter, `resps`
    and `filtered_resps` as lm-eval logged them.
    """
    first, *others = evaluations
    found: dict[str, dict[str, Any]] = {}
    for task, numbers in _flips(scores).items():
        documents: dict[int, dict[str, Any]] = {}
        for other in (one for one in others if task in one.samples):
            for pairs in paired_lines(first, other, task).values():
                for mine, theirs in (pair for pair in pairs if pair[0]["doc_id"] in numbers):
                    document = documents.setdefault(mine["doc_id"], _question(mine))
                    for one, line in ((first, mine), (other, theirs)):
                        document["answers"].setdefault(one.key, {})[line["filter"]] = _answer(line)
        found[task] = {str(number): documents[number] for number in sorted(documents)}
    return found


def _flips(scores: Sequence[ComparedScore]) -> dict[str, set[int]]:
    """The documents of each task that flip in any row."""
    found: dict[str, set[int]] = {}
    for score in scores:
        for number in chain.from_iterable((score.flips or {}).values()):
            found.setdefault(score.task, set()).add(number)
    return found


def _question(line: Line) -> dict[str, Any]:
    arguments = list(line.get("arguments", {}).values())
    choices = [each.get("arg_1") for each in arguments]
    question = {"prompt": arguments[0].get("arg_0") if arguments else None, "target": line.get("target")}
    if len(choices) > 1 and all(isinstance(choice, str) for choice in choices):
        question["choices"] = choices
    return question | {"answers": {}}


def _answer(line: Line) -> dict[str, Any]:
    return {"resps": line.get("resps"), "filtered_resps": line.get("filtered_resps")}


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

    def content(self) -> dict[str, Any]:
        """What comparison.json holds: equal for equal evaluations.

        `documents` has the prompt, the right answer and all answers of every document that flips, by task and number.
        """
        return {
            "schema_version": SCHEMA_VERSION,
            "statistics": VERSION,
            "evaluations": [_described(one) for one in self.evaluations],
            "scores": [
                asdict(score) | {"told_from_chance": score.told_from_chance, "verdict": score.verdict}
                for score in self.scores
            ],
            "notes": self.notes,
            "documents": flipped_documents(self.evaluations, self.scores),
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
    corrected = [p for p in holm([score.p for score in scores]) if p is not None]
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
    versions = [_lm_eval_version(one) for one in (a, b)]
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


def _lm_eval_version(evaluation: Evaluation) -> str | None:
    own = evaluation.own.versions.get("lm_eval") if evaluation.own else None
    return own or evaluation.results.get("lm_eval_version")


def _version_notes(a: Evaluation, b: Evaluation, task: str) -> list[str]:
    mine, theirs = (one.results.get("versions", {}).get(task) for one in (a, b))
    return [] if mine == theirs else [f"{task} is version {mine} in {a.key} and {theirs} in {b.key}."]


def _partial_notes(a: Evaluation, task: str) -> list[str]:
    """A note if part of the task's documents were evaluated, in both as they are the same."""
    evaluated = len({line["doc_id"] for line in a.samples[task]})
    all_documents = a.results.get("n-samples", {}).get(task, {}).get("original", evaluated)
    if evaluated == all_documents:
        return []
    return [f"{task}: {evaluated:,} of {all_documents:,} documents (PARTIAL); not the benchmark's number."]


def _described(evaluation: Evaluation) -> dict[str, Any]:
    """Where an evaluation comes from."""
    return {
        "key": evaluation.key,
        "label": evaluation.label,
        "settings": evaluation.settings,
        "file": str(evaluation.file.absolute()),
        "samples": {task: str(file.absolute()) for task, file in evaluation.samples_files.items()},
        "run_id": evaluation.own.run_id if evaluation.own else None,
        "lm_eval_version": _lm_eval_version(evaluation),
        "task_versions": evaluation.results.get("versions", {}),
    }
