"""The files of a run's `metrics=confidence`: confidence.json, and confidence.jsonl with each
answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_lab.results.atomic import json_line, write_atomically, write_json
from moe_lab.results.confidence import Answers
from moe_lab.results.measured import Difference, Value
from moe_lab.results.stored_files import content_of_run, read_lines

SCHEMA_VERSION = 1
FILE = "confidence.json"
BY_ANSWER = "confidence.jsonl"
MEASURES = {"ece": "ECE", "auroc": "AUROC"}
"""The labels of the measures, by their keys in confidence.json."""


@dataclass(frozen=True)
class StoredConfidence:
    """A run's confidence.json."""

    content: Mapping[str, Any]

    @property
    def tasks(self) -> dict[str, Mapping[str, Any]]:
        """The numbers of each task that has some."""
        return {name: block for name, block in self.content["tasks"].items() if block is not None}

    def value(self, task: str, measure: str) -> Value:
        """A measure of `MEASURES`."""
        return Value.model_validate(self.tasks[task][measure])

    def difference(self, other: str, task: str, measure: str) -> Difference:
        """The difference to another run ("baseline"); all values are None without one."""
        of_task = self.content["differences"].get(other, {}).get(task, {})
        return Difference.model_validate(of_task.get(measure, {}))


def stored_confidence(folder: Path, run_id: str, commit: str | None) -> StoredConfidence | None:
    """A run's confidence.json if it is of this run and hub commit, else None."""
    content = content_of_run(
        folder / FILE, run_id=run_id, commit=commit, schema_version=SCHEMA_VERSION
    )
    if content is None:
        return None
    return StoredConfidence(content)


DocumentNumbers = list[Any]
"""lm-eval's number of each document, in the order of `Answers.document_A`; of the documents of all
tasks (task, number)."""
ALL_TASKS = "all"
"""The name of the documents of all tasks together."""


@dataclass(frozen=True)
class TaskAnswers:
    """The answers of a task, and which documents they are to."""

    answers: Answers
    documents: DocumentNumbers


def write_confidence(
    folder: Path, content: Mapping[str, Any], by_task: Mapping[str, TaskAnswers]
) -> None:
    """Write both files, confidence.json last. Raises ResultsError."""
    lines = []
    for task, of_task in by_task.items():
        answers = of_task.answers
        for place, confidence, right in zip(
            answers.document_A.tolist(),
            answers.confidence_A.tolist(),
            answers.right_A.tolist(),
            strict=True,
        ):
            line = {
                "task": task,
                "document": of_task.documents[place],
                "confidence": confidence,
                "right": right,
            }
            lines.append(json_line(line))
    write_atomically(folder / BY_ANSWER, "".join(lines))
    write_json(folder / FILE, content)


def read_answers(folder: Path) -> dict[str, TaskAnswers]:
    """The answers that `write_confidence` wrote, by task."""
    lines_of: dict[str, list[Mapping[str, Any]]] = {}
    for line in read_lines(folder / BY_ANSWER) or []:
        lines_of.setdefault(line["task"], []).append(line)
    by_task = {}
    for task, lines in lines_of.items():
        by_task[task] = answers_of(
            [line["document"] for line in lines],
            [line["confidence"] for line in lines],
            [line["right"] for line in lines],
        )
    return by_task


def with_all(by_task: Mapping[str, TaskAnswers]) -> dict[str, TaskAnswers]:
    """The answers of each task, and of several tasks those of all together under ALL_TASKS."""
    if len(by_task) < 2:
        return dict(by_task)
    documents: list[Any] = []
    confidence: list[float] = []
    right: list[float] = []
    for task, of_task in by_task.items():
        answers = of_task.answers
        for place in answers.document_A.tolist():
            documents.append((task, of_task.documents[place]))
        confidence += answers.confidence_A.tolist()
        right += answers.right_A.tolist()
    return {**by_task, ALL_TASKS: answers_of(documents, confidence, right)}


def answers_of(documents: list[Any], confidence: list[float], right: list[float]) -> TaskAnswers:
    """From lists with an entry for each answer; `documents` are lm-eval's numbers."""
    distinct = list(dict.fromkeys(documents))
    place_of = {document: place for place, document in enumerate(distinct)}
    places = [place_of[document] for document in documents]
    return TaskAnswers(Answers.of(confidence, right, places), distinct)
