"""Calibration of confidence (`metrics=confidence`), as a table and for loggers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moe_lab.config.terminal import print_line
from moe_lab.reports.columns import Column, names, numbers, print_table
from moe_lab.reports.labels import run_labels
from moe_lab.reports.score_columns import interval_column, signed_number
from moe_lab.results.confidence_files import (
    ALL_TASKS,
    MEASURES,
    StoredConfidence,
    stored_confidence,
)
from moe_lab.results.measured import Difference, Value, number
from moe_lab.results.model import RunResult

MOST_TASKS = 3
"""Tasks that have lines of their own."""
EXPLAINED = (
    'ECE: expected calibration error; "if calibrated" is what sampling alone makes of an error of '
    "0. AUROC: 0.5 is chance (docs/confidence.md)."
)


def confidence_of(result: RunResult) -> StoredConfidence | None:
    """The confidence that is stored with a result; None if it has none."""
    return stored_confidence(result.stored_in, result.run_id, result.model.commit)


def logged_values(confidence: StoredConfidence) -> dict[str, float]:
    """The numbers as loggers name them: `confidence/<measure>/<task>`. Missing ones are left
    out."""
    values = {}
    for task in confidence.tasks:
        for measure in MEASURES:
            value = confidence.value(task, measure).value
            if value is not None:
                values[f"confidence/{measure}/{task}"] = value
    return values


@dataclass(frozen=True, kw_only=True)
class ConfidenceLine:
    """A measure of one task of one run."""

    run: RunResult
    settings: str
    task: str
    metric: str
    label: str
    measured: Value
    if_calibrated: float | None
    """Of ECE."""
    difference: Difference
    """To the base model."""


def print_confidence(results: Sequence[RunResult]) -> None:
    """Print one table of all results that have confidence; nothing if none has."""
    lines = confidence_lines(results)
    if lines:
        print()
        print_table("Confidence", confidence_columns(lines))
        print_line(EXPLAINED)


def confidence_lines(results: Sequence[RunResult]) -> list[ConfidenceLine]:
    """A line for each run, task and measure."""
    lines = []
    for result, settings in zip(results, run_labels(results), strict=True):
        confidence = confidence_of(result)
        if confidence is None:
            continue
        for task, block in _shown(confidence).items():
            for measure, label in MEASURES.items():
                line = ConfidenceLine(
                    run=result,
                    settings=settings,
                    task=task,
                    metric=block["metric"],
                    label=label,
                    measured=confidence.value(task, measure),
                    if_calibrated=block[measure].get("if_calibrated"),
                    difference=confidence.difference("baseline", task, measure),
                )
                lines.append(line)
    return lines


def _shown(confidence: StoredConfidence) -> dict[str, Mapping[str, Any]]:
    """The tasks that are shown: of more than MOST_TASKS only their documents together."""
    blocks = confidence.tasks
    if ALL_TASKS in blocks and len(blocks) - 1 > MOST_TASKS:
        return {ALL_TASKS: blocks[ALL_TASKS]}
    return blocks


def confidence_columns(lines: Sequence[ConfidenceLine]) -> list[Column]:
    """The columns of the table."""
    return [
        *names(
            model=[line.run.model.name for line in lines],
            method=[line.run.method.name for line in lines],
            settings=[line.settings for line in lines],
            task=[line.task for line in lines],
            metric=[line.metric for line in lines],
            of=[line.label for line in lines],
        ),
        numbers("value", [line.measured.value for line in lines], number),
        interval_column("95% interval", [line.measured.interval for line in lines], spare=2),
        numbers("if calibrated", [line.if_calibrated for line in lines], number, spare=1),
        numbers("to base", [line.difference.difference for line in lines], signed_number),
        interval_column(
            "95% interval", [line.difference.interval for line in lines], sign=True, spare=3
        ),
    ]
