"""Whether a measured number agrees with the published one, and why a cell is empty or cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AGREES = "agrees"
DISAGREES = "disagrees"
NOT_COMPARABLE = "not comparable"
NOT_PUBLISHED = "no published number"
FAILED = "failed"
NOT_RUN = "not run"
NOT_AT_SCALE = "not at this scale"
STATES = {
    AGREES: "The published number lies within the 95% interval of the measured one.",
    DISAGREES: "The published number lies outside the 95% interval of the measured one.",
    NOT_COMPARABLE: "Measured, but at another scale, on part of the documents, or without an interval.",
    NOT_PUBLISHED: "Measured; the paper prints no number for it.",
    FAILED: "The cell was tried and failed.",
    NOT_RUN: "Nothing is stored for the cell.",
    NOT_AT_SCALE: "The paper prints a number; the scale has no such cell.",
}
"""What each state means."""
STAND_INS = "at scale tiny the embedded model and the toy tasks stand in"


def state_of(cell: Mapping[str, Any], scale: str) -> tuple[str, str]:
    """The state of a cell and the reason for it, empty where the state says it all.

    Args:
        cell: a cell of a table's record (`record.py`).
        scale: the scale of its table.
    """
    score, published = cell["score"], cell["published"]
    if score is None or score["value"] is None:
        if cell["problem"]:
            return FAILED, cell["problem"]
        if cell.get("absent"):
            return NOT_RUN, cell["absent"]
        if score is not None:
            return FAILED, "the run has no such metric"
        missing = (
            "not all cells of the average are measured" if cell["average"] else "nothing is stored for it"
        )
        return NOT_RUN, missing
    if published is None:
        return NOT_PUBLISHED, ""
    if reason := _why_not(score, scale):
        return NOT_COMPARABLE, reason
    low, high = score["interval"]
    return (AGREES if low <= published["fraction"] <= high else DISAGREES), published["mark"] or ""


def _why_not(score: Mapping[str, Any], scale: str) -> str:
    """Why a measured number cannot be compared with the paper's; empty if it can."""
    if scale == "tiny":
        return STAND_INS
    if "PARTIAL" in score["marks"]:
        return "measured on part of the documents"
    return "" if score["interval"] else "it has no interval"
