"""How far a run has come."""

from typing import NamedTuple

from moe_lab.metrics.registry import evaluations
from moe_lab.results.response_log import answers_in
from moe_lab.runs.run import Run
from moe_lab.tasks.workload import Workload


class RunState(NamedTuple):
    """How far a run has come."""

    words: str
    """Such as "done", "missing", or "interrupted, 12 of 50 answered"."""
    share_left: float
    """The share of the answers that is left to compute, 0 to 1."""


def run_state(run: Run, workload: Workload) -> RunState:
    """The state of a run. Only reads the run's folder."""
    if run.done and not run.config.rerun:
        return RunState("done" if run.measured else "metrics missing", 0.0)
    name = "responses.rerun.jsonl" if run.config.rerun else "responses.jsonl"
    held = run.store.is_held()
    answered = answers_in(run.folder / name, run.answers_header)
    if not held and not answered:
        return RunState("missing", 1.0)
    if held:
        word = "running"
    elif (run.folder / "status.json").exists():
        word = "failed"
    else:
        word = "interrupted"
    requests = max(round(workload.requests), answered)
    words = f"{word}, {answered:,} of {requests:,} answered"
    return RunState(words, 1 - answered / requests)


def evaluations_left(run: Run) -> float:
    """How many evaluations of a run's documents with other routings are left for `metrics=expert`;
    0 without it, and if the metrics are stored."""
    if run.config.metrics != "expert" or run.method.expert_metrics != "all":
        return 0.0
    if run.measured and not run.config.rerun:
        return 0.0
    return evaluations()
