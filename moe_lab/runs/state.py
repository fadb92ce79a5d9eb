"""The state of a run: done, running, interrupted or missing, and how much is left to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moe_lab.results.folder import older_intervals
from moe_lab.results.request_log import answers_in
from moe_lab.results.stored_files import whole_mapping

if TYPE_CHECKING:
    from moe_lab.runs.run import Run
    from moe_lab.tasks.estimate import Workload


def run_state(run: Run, workload: Workload) -> tuple[str, float]:
    """(the state in words, the share of the answers that is left to compute). Only reads the run's folder."""
    if run.done and not run.config.rerun:
        return ("done" if run.measured else _missing(run)), 0.0
    held, answered = run.store.is_held(), _answered(run)
    if not held and not answered:
        return "missing", 1.0
    word = "running" if held else _ended(run)
    requests = max(round(workload.requests), answered)
    return f"{word}, {answered:,} of {requests:,} answered", 1 - answered / requests


def _missing(run: Run) -> str:
    """What the same command would add to a stored result."""
    stored = run.stored()
    if stored is not None and older_intervals(stored["moe_lab"]):
        return "intervals to make anew"
    if not run.has_flips:
        return "routing at flips missing"
    return "verdicts missing" if run.judges else "metrics missing"


def _answered(run: Run) -> int:
    """How many answers are stored and would not be computed again."""
    from moe_lab.runs.evaluation.evaluate import answers_header

    name = "responses.rerun.jsonl" if run.config.rerun else "responses.jsonl"
    return answers_in(run.folder / name, answers_header(run))


def _ended(run: Run) -> str:
    """`failed` after an error, else `interrupted`."""
    status = whole_mapping(run.folder / "status.json") or {}
    return "failed" if status.get("status") == "error" else "interrupted"
