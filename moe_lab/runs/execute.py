"""Execution of a run: returns the stored result, or computes what is missing.

The runs that it is compared with are executed first, then the requests without an answer, then lm-eval's metrics over
all answers.
"""

from __future__ import annotations

from typing import Any

from moe_lab.errors import ModelError, MoeLabError, ResultsError
from moe_lab.models.pool import ModelPool
from moe_lab.results.folder import version_marks
from moe_lab.results.samples import check_samples, read_samples
from moe_lab.results.stored import DamagedError, warn_once
from moe_lab.runs.evaluation.evaluate import evaluate_run
from moe_lab.runs.memory_errors import memory_errors
from moe_lab.runs.run import Outcome, Run

FROM_ANSWERS = "It is made again from the stored answers."


def execute(run: Run, models: ModelPool) -> Outcome:
    """Return the stored result, or compute what is missing of a run and of the runs that it is compared with.

    The same call after an interruption continues. With mode=report a stored result is returned as it is, even if a
    comparison or the metrics are missing. Raises RunHeldError if another process works on this run, and MoeLabError if
    memory does not suffice.
    """
    stored = None if run.config.rerun else _stored_outcome(run)
    if stored is not None:
        block = stored.results["moe_lab"]
        compared = (run.baseline is None or "baseline" in block) and all(
            name in block.get("compared", {}) for name in run.comparisons
        )
        measured = all(each.measured for each in (run, *run.compared_runs.values()))
        if run.config.mode == "report":
            return stored
        if compared and measured and _has_samples(run, stored.results):
            return stored
    with run.store.held(), run.store.status(), memory_errors(run):
        results = evaluate_run(run, models, _compared_results(run, models))
    return Outcome(run=run, results=results, stored=False, path=run.folder / "results.json")


def _stored_outcome(run: Run) -> Outcome | None:
    results = run.stored()
    if results is None:
        return None
    marks = version_marks(results["moe_lab"])
    return Outcome(run=run, results=results, stored=True, path=run.folder / "results.json", marks=marks)


def _has_samples(run: Run, results: dict[str, Any]) -> bool:
    """Whether the sample logs beside results.json are complete; the stored answers suffice to write them again."""
    try:
        check_samples(run.folder, results)
    except DamagedError as error:
        warn_once(f"{error.problem}. {FROM_ANSWERS}")
        return False
    return True


def _compared_results(run: Run, models: ModelPool) -> dict[str, dict[str, Any]]:
    results = {}
    for name, other in run.compared_runs.items():
        try:
            results[name] = _comparison(other, models)
        except MoeLabError as error:
            message = f"{other.folder.name}, which {run.folder.name} is compared with, failed: {error}"
            avoidable = isinstance(error, ResultsError) or name != "baseline"
            if avoidable and not isinstance(error, ModelError):  # a ModelError would end the run itself, too
                message += "\nbaseline=false leaves comparisons out."
            raise type(error)(message) from error
    return results


def _comparison(run: Run, models: ModelPool) -> dict[str, Any]:
    """The scores and samples of a run to compare with: read or computed. Waits if another process computes it."""
    stored = _stored_with_samples(run)
    if stored is None:
        with run.store.held(wait=True):
            stored = _stored_with_samples(run)
            if stored is None:
                with run.store.status():
                    results = evaluate_run(run, models, _compared_results(run, models))
                stored = results, read_samples(run.folder, results)
    results, samples = stored
    return {"run_id": run.run_id, "results": results["results"], "samples": samples}


def _stored_with_samples(run: Run) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The content of results.json and the sample logs; None if the run has to be evaluated."""
    results = run.stored()
    if results is None or not run.measured:
        return None
    try:
        return results, read_samples(run.folder, results)
    except DamagedError as error:
        warn_once(f"{error.problem}. {FROM_ANSWERS}")
        return None
