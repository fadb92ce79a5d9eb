"""Execution of a run: returns the stored result, or computes what is missing.

The runs that it is compared with are executed first, then the requests without an answer, then lm-eval's metrics over
all answers.
"""

from __future__ import annotations

from typing import Any

from moe_lab.errors import ModelError, MoeLabError, ResultsError, RunHeldError
from moe_lab.models.pool import ModelPool
from moe_lab.results.samples import read_samples
from moe_lab.runs.evaluation.evaluate import evaluate_run
from moe_lab.runs.memory_errors import memory_errors
from moe_lab.runs.run import Outcome, Run
from moe_lab.runs.stored_result import stored_result, stored_with_samples


def execute(run: Run, models: ModelPool) -> Outcome:
    """Return the stored result, or compute what is missing of a run and of the runs that it is compared with.

    The same call after an interruption continues. Raises RunHeldError if another process works on this run, and
    MoeLabError if memory does not suffice.
    """
    stored = stored_result(run)
    if stored is not None:
        return stored
    with run.store.held(), run.store.status(), memory_errors(run):
        results = evaluate_run(run, models, _compared_results(run, models))
    return Outcome(run=run, results=results, stored=False, path=run.folder / "results.json")


def _compared_results(run: Run, models: ModelPool) -> dict[str, dict[str, Any]]:
    results = {}
    for name, other in run.compared_runs.items():
        try:
            results[name] = _comparison(other, models)
        except RunHeldError:
            raise
        except MoeLabError as error:
            message = f"{other.folder.name}, which {run.folder.name} is compared with, failed: {error}"
            avoidable = isinstance(error, ResultsError) or name != "baseline"
            if avoidable and not isinstance(error, ModelError):  # a ModelError would end the run itself, too
                message += "\nbaseline=false leaves comparisons out."
            raise type(error)(message) from error
    return results


def _comparison(run: Run, models: ModelPool) -> dict[str, Any]:
    """The scores and samples of a run to compare with: read or computed."""
    stored = stored_with_samples(run)
    if stored is None:
        with run.store.held():
            stored = stored_with_samples(run)
            if stored is None:
                with run.store.status():
                    results = evaluate_run(run, models, _compared_results(run, models))
                stored = results, read_samples(run.folder, results)
    results, samples = stored
    return {"run_id": run.run_id, "results": results["results"], "samples": samples}
