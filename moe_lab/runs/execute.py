"""Execution of a run: the stored result, or what is missing of it is computed.

The runs that it is compared with come first, then the unanswered requests, then lm-eval's metrics over all answers.
"""

from __future__ import annotations

from typing import Any

from moe_lab.errors import ModelError, MoeLabError, ResultsError
from moe_lab.models.pool import ModelPool
from moe_lab.results.folder import version_marks
from moe_lab.results.samples import check_samples, read_samples
from moe_lab.results.stored import DamagedError, tell_once
from moe_lab.runs.evaluation.evaluate import evaluate_run
from moe_lab.runs.memory_errors import memory_errors
from moe_lab.runs.run import Outcome, Run

FROM_ANSWERS = "It is made again from the stored answers."


def execute(run: Run, models: ModelPool) -> Outcome:
    """Compute what is missing of a run and of those that it is compared with, or return what is stored.

    The same call after an interruption continues. With mode=report a stored result is returned as it is, also where
    a comparison or the metrics are missing. Raises RunHeldError where another process works on this
    run, and MoeLabError where memory does not suffice.
    """
    stored = None if run.config.rerun else _stored_outcome(run)
    if stored is not None:
        block = stored.results["moe_lab"]
        compared = (run.baseline is None or "baseline" in block) and all(
            name in block.get("compared", {}) for name in run.compared
        )
        measured = all(each.measured for each in (run, *run.needed.values()))
        if run.config.mode == "report":
            return stored
        if compared and measured and _has_samples(run, stored.results):
            return stored
    with run.store.held(), run.store.status(), memory_errors(run):
        results = evaluate_run(run, models, _needed_results(run, models))
    return Outcome(run=run, results=results, stored=False, path=run.folder / "results.json")


def _stored_outcome(run: Run) -> Outcome | None:
    results = run.stored()
    if results is None:
        return None
    marks = version_marks(results["moe_lab"])
    return Outcome(run=run, results=results, stored=True, path=run.folder / "results.json", marks=marks)


def _has_samples(run: Run, results: dict[str, Any]) -> bool:
    """Whether the logs of samples beside a results.json have all lines; they are derived from the stored answers."""
    try:
        check_samples(run.folder, results)
    except DamagedError as error:
        tell_once(f"{error.told}. {FROM_ANSWERS}")
        return False
    return True


def _needed_results(run: Run, models: ModelPool) -> dict[str, dict[str, Any]]:
    results = {}
    for name, other in run.needed.items():
        try:
            results[name] = _first(other, models)
        except MoeLabError as error:
            told = f"{other.folder.name}, which {run.folder.name} is compared with, failed: {error}"
            alone = isinstance(error, ResultsError) or name != "baseline"
            if alone and not isinstance(error, ModelError):  # else the run itself would fail alike
                told += "\nbaseline=false leaves comparisons out."
            raise type(error)(told) from error
    return results


def _first(run: Run, models: ModelPool) -> dict[str, Any]:
    """A run to compare with, its samples included: read, waited for if another process computes it, or computed."""
    found = _stored_with_samples(run)
    if found is None:
        with run.store.held(wait=True):
            found = _stored_with_samples(run)
            if found is None:
                with run.store.status():
                    results = evaluate_run(run, models, _needed_results(run, models))
                found = results, read_samples(run.folder, results)
    results, samples = found
    return {"run_id": run.run_id, "results": results["results"], "samples": samples}


def _stored_with_samples(run: Run) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """A run's results.json and its logs of samples; None where the run is to be evaluated, the first time or again."""
    results = run.stored()
    if results is None or not run.measured:
        return None
    try:
        return results, read_samples(run.folder, results)
    except DamagedError as error:
        tell_once(f"{error.told}. {FROM_ANSWERS}")
        return None
