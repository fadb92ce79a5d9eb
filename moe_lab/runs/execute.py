"""Execution of a run: returns the stored result, or computes the missing parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from moe_lab.errors import ModelError, MoeLabError, ResultsError, RunHeldError, first_line
from moe_lab.models.memory import ModelPool
from moe_lab.results.model import RunResult
from moe_lab.results.samples import check_samples, read_samples
from moe_lab.results.stored_files import DamagedError, warn_once
from moe_lab.runs.evaluation.evaluate import evaluate_run
from moe_lab.runs.run import Outcome, Run


@contextmanager
def memory_errors(name: str) -> Iterator[None]:
    """Turn "out of memory", of the device or the machine, into a MoeLabError that names the run or study."""
    import torch

    try:
        yield
    except (MemoryError, RuntimeError) as error:
        of_cpu = "DefaultCPUAllocator" in str(error)  # a plain RuntimeError
        if not of_cpu and not isinstance(error, MemoryError | torch.OutOfMemoryError):
            raise
        raise MoeLabError(
            f"{name}: out of memory: {first_line(error)}.\nStored answers are kept: the same command with a lower "
            "batch_size= continues. A lower max_length=, dtype= or method.n= makes another run."
        ) from error


def execute(
    run: Run, models: ModelPool, *, compute: bool = True, begin: Callable[[], None] = lambda: None
) -> Outcome:
    """Return the stored result, or compute the missing parts of a run and of the runs that it is compared with.

    The same call after an interruption continues. With `compute=False` only a stored result is returned, even if a
    comparison, metrics or samples are missing. Raises RunHeldError if another process works on this run, MoeLabError if
    memory does not suffice, and ResultsError if nothing is stored and nothing may be computed.

    Args:
        begin: called when the run is to be computed and no other process works on it.
    """
    path = run.folder / "results.json"
    stored = None if compute and run.config.rerun else run.stored()
    if stored is not None and (not compute or _is_whole(run, stored)):
        return Outcome(run=run, results=stored, stored=True, path=path, marks=stored.version_notes)
    if not compute:
        raise ResultsError(f"{run.folder.name} has no stored result any more. mode=run computes it.")
    with run.store.held(), run.store.status(), memory_errors(run.folder.name):
        begin()
        results = evaluate_run(run, models, _compared_results(run, models))
    return Outcome(run=run, results=results, stored=False, path=path)


def _is_whole(run: Run, results: RunResult) -> bool:
    """Whether a stored result has its comparisons, metrics and samples. The stored answers suffice to write samples."""
    compared = run.baseline is None or results.other_id() is not None
    compared = compared and all(name in results.compared for name in run.comparisons)
    if not compared or not all(other.measured for other in (run, *run.compared_runs.values())):
        return False
    try:
        check_samples(results)
    except DamagedError as error:
        warn_once(f"{error.problem}. It is written again from the stored answers.")
        return False
    return True


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
    """The scores and samples of a run to compare with, read or computed."""

    def stored() -> tuple[RunResult, dict[str, Any]] | None:
        results = run.stored()
        if results is None or not run.measured:
            return None
        try:
            return results, read_samples(results)
        except DamagedError as error:
            warn_once(f"{error.problem}. It is written again from the stored answers.")
            return None

    if (found := stored()) is None:
        with run.store.held():
            if (found := stored()) is None:
                with run.store.status():
                    results = evaluate_run(run, models, _compared_results(run, models))
                found = results, read_samples(results)
    results, samples = found
    return {
        "run_id": run.run_id,
        "results": results["results"],
        "samples": samples,
        "rounding": results.rounding.measured,
    }
