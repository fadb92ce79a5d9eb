"""The rows of a paper's table, and whether the number of each agrees with the published one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from moe_lab.reports.papers.published import Published
from moe_lab.reports.papers.training_scores import TRAINING
from moe_lab.results.score import Score


class State(StrEnum):
    """Whether a cell has a number that agrees with the published one."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        state = str.__new__(cls, value)
        state._value_ = value
        state.meaning = meaning
        return state

    AGREES = "agrees", "The published number lies within the 95% interval of the measured one."
    DISAGREES = (
        "disagrees",
        "The published number lies outside the 95% interval of the measured one.",
    )
    NOT_COMPARABLE = (
        "not comparable",
        "Measured, but at another scale, on part of the documents, or without an interval.",
    )
    NOT_PUBLISHED = "no published number", "Measured; the paper prints no number for it."
    MEASURED = "measured", "A number is stored for the cell."
    FAILED = "failed", "The cell was tried and failed."
    NOT_RUN = "not run", "Nothing is stored for the cell."
    NOT_AT_SCALE = "not at this scale", "The paper prints a number; the scale has no such cell."


NOTHING_STORED = "nothing is stored for it"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A cell of a table, an average, or a number of the paper without a cell."""

    coordinates: dict[str, str]
    metric: str = ""
    shows: str | None = None
    """The metric with its unit, and whether lower is better."""
    average: bool = False
    score: Score | None = None
    compared: dict[str, Score] = field(default_factory=dict)
    """The comparisons with other runs than the base model's, by name."""
    published: Published | None = None
    problem: str | None = None
    """Why the cell failed."""
    run_id: str | None = None
    """The run of its first seed, also of a cell without a result."""
    runs: list[str] = field(default_factory=list)
    studies: list[str] = field(default_factory=list)
    state: State = State.NOT_RUN
    reason: str = ""
    """The reason for the state; empty where the state needs none."""

    @property
    def of_training(self) -> bool:
        """Whether it is a number of a training, which belongs to no task."""
        return self.metric.startswith(TRAINING)

    @property
    def minus_published(self) -> float | None:
        """The measured value minus the published one; None if the two cannot be compared."""
        if self.state not in (State.AGREES, State.DISAGREES):
            return None
        assert self.score is not None and self.score.value is not None
        assert self.published is not None
        return self.score.value - self.published.fraction


def with_state(row: Row, scale: str, unpublished: State = State.NOT_PUBLISHED) -> Row:
    """The row with its state and the reason for it.

    Args:
        unpublished: the state of a measured number next to which there is no published one.
    """
    score = row.score
    if score is None or score.value is None:
        return _without_number(row)
    if row.published is None:
        return replace(row, state=unpublished)
    obstacle = _obstacle(score, scale)
    if obstacle is not None:
        return replace(row, state=State.NOT_COMPARABLE, reason=obstacle)
    assert score.interval is not None, "without an interval there is an obstacle"
    low, high = score.interval
    agrees = low <= row.published.fraction <= high
    state = State.AGREES if agrees else State.DISAGREES
    return replace(row, state=state, reason=row.published.mark or "")


def _without_number(row: Row) -> Row:
    """A row without a number: its cell failed or was not run."""
    if row.problem:
        return replace(row, state=State.FAILED, reason=row.problem)
    if row.score is not None:
        return replace(row, state=State.FAILED, reason="the run has no such metric")
    reason = row.reason or NOTHING_STORED
    if row.average and not row.reason:
        reason = "not all cells of the average are measured"
    return replace(row, state=State.NOT_RUN, reason=reason)


def _obstacle(score: Score, scale: str) -> str | None:
    """Why a measured number cannot be compared with a published one; None if it can."""
    if scale == "tiny":
        return "scale tiny uses the embedded model and the toy tasks"
    if "PARTIAL" in score.marks:
        return "measured on part of the documents"
    if score.interval is None:
        return "it has no interval"
    return None
