"""What has become of a run so far: done, running, interrupted or missing, and what is left to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moe_lab.results.folder import older_intervals
from moe_lab.results.request_log import answers_in
from moe_lab.results.stored import whole_mapping

if TYPE_CHECKING:
    from moe_lab.runs.run import Run
    from moe_lab.tasks.estimate import Asked


def run_state(run: Run, asked: Asked) -> tuple[str, float]:
    """(the state in words, the share of its answers that is left). Reads the run's folder, and writes nothing."""
    if run.done and not run.config.rerun:
        return ("done" if run.measured else _missing(run)), 0.0
    held, answered = run.store.is_held(), _answered(run)
    if not held and not answered:
        return "missing", 1.0
    word = "running" if held else _ended(run)
    requests = max(round(asked.requests), answered)
    return f"{word}, {answered:,} of {requests:,} answered", 1 - answered / requests


def _missing(run: Run) -> str:
    """What the same command adds to a stored result."""
    stored = run.stored()
    if stored is not None and older_intervals(stored["moe_lab"]):
        return "intervals to make anew"
    return "verdicts missing" if run.judges else "metrics missing"


def _answered(run: Run) -> int:
    """How many answers the same command would not compute again."""
    from moe_lab.runs.evaluation.evaluate import answers_header

    name = "responses.rerun.jsonl" if run.config.rerun else "responses.jsonl"
    return answers_in(run.folder / name, answers_header(run))


def _ended(run: Run) -> str:
    """`failed` where an error ended it, else `interrupted`."""
    status = whole_mapping(run.folder / "status.json") or {}
    return "failed" if status.get("status") == "error" else "interrupted"
