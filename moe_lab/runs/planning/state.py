"""How far a run has come."""

from moe_lab.metrics.registry import evaluations
from moe_lab.results.response_log import answers_in
from moe_lab.runs.run import Run
from moe_lab.tasks.workload import Workload


def run_state(run: Run, workload: Workload) -> tuple[str, float]:
    """(the state in words, the share of the answers that is left to compute).

    Only reads the run's folder.
    """
    if run.done and not run.config.rerun:
        return ("done" if run.measured else "metrics missing"), 0.0
    name = "responses.rerun.jsonl" if run.config.rerun else "responses.jsonl"
    held = run.store.is_held()
    answered = answers_in(run.folder / name, run.answers_header)
    if not held and not answered:
        return "missing", 1.0
    if held:
        word = "running"
    elif (run.folder / "status.json").exists():
        word = "failed"
    else:
        word = "interrupted"
    requests = max(round(workload.requests), answered)
    return f"{word}, {answered:,} of {requests:,} answered", 1 - answered / requests


def evaluations_left(run: Run) -> float:
    """How many times `metrics=expert` evaluates a run again, with other routings."""
    measures = run.config.metrics == "expert" and run.method.expert_metrics == "all"
    if measures and (run.config.rerun or not run.measured):
        return evaluations()
    return 0.0
