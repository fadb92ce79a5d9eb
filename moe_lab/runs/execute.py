"""Execution of a run: returns the stored result, or computes the missing parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from moe_lab.config.schema import Config
from moe_lab.errors import ModelError, MoeLabError, ResultsError, RunHeldError
from moe_lab.models.memory import ModelPool
from moe_lab.results.model import RunResult
from moe_lab.results.samples import check_samples, read_samples
from moe_lab.results.stored_files import DamagedError, warn_once
from moe_lab.runs.evaluation.evaluate import evaluate_run
from moe_lab.runs.run import Outcome, Run

# The error for a run or a study that is out of memory


class Work(Protocol):
    """A run or a study."""

    @property
    def config(self) -> Config: ...
    @property
    def folder(self) -> Path: ...
    @property
    def method(self) -> Any: ...


@contextmanager
def memory_errors(run: Work) -> Iterator[None]:
    """Turn "out of memory", of the device or the machine, into a MoeLabError that names settings which need less."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise MoeLabError(f"{run.folder.name}: out of memory: {reason[:300]}\n{_less_memory(run)}") from error


def _less_memory(run: Work) -> str:
    """The settings that need less memory."""
    n = getattr(run.method.config, "n", None)
    if run.config.batch_size == 1 and n is not None and n > 1:
        return (
            f"method.n={n}: the routing samples of one request do not fit together. Give a lower method.n=.\n"
            "max_length= and dtype= also need less memory. Each makes another run."
        )
    smaller = "" if n is None else f", method.n= (now {n})"
    return (
        f"Stored answers are kept: the same command with a lower batch_size= (now {run.config.batch_size}) continues.\n"
        f"max_length={smaller} and dtype= also need less memory, but make another run."
    )


def _out_of_memory(error: Exception) -> bool:
    """Devices raise PyTorch's OutOfMemoryError, the CPU allocator a plain RuntimeError."""
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


# Whether a stored result is returned, or the run has to be computed (again)

FROM_ANSWERS = "It is written again from the stored answers."


def stored_result(run: Run, *, compute: bool = True) -> Outcome | None:
    """The stored result. None if there is none, with `rerun`, and if a comparison, metrics or samples are missing.

    With `compute=False` a stored result is returned even if a comparison, metrics or samples are missing.
    """
    results = None if compute and run.config.rerun else run.stored()
    if results is None:
        return None
    path = run.folder / "results.json"
    outcome = Outcome(run=run, results=results, stored=True, path=path, marks=results.version_notes)
    if not compute:
        return outcome
    with_base = run.baseline is None or results.other_id() is not None
    compared = with_base and all(name in results.compared for name in run.comparisons)
    measured = all(other.measured for other in (run, *run.compared_runs.values()))
    return outcome if compared and measured and _has_samples(results) else None


def _has_samples(result: RunResult) -> bool:
    """Whether the sample logs next to results.json are complete; the stored answers suffice to write them again."""
    try:
        check_samples(result)
    except DamagedError as error:
        warn_once(f"{error.problem}. {FROM_ANSWERS}")
        return False
    return True


def stored_with_samples(run: Run) -> tuple[RunResult, dict[str, Any]] | None:
    """The stored result and its sample logs; None if the run has to be evaluated."""
    results = run.stored()
    if results is None or not run.measured:
        return None
    try:
        return results, read_samples(results)
    except DamagedError as error:
        warn_once(f"{error.problem}. {FROM_ANSWERS}")
        return None


# The order of a computation: first the runs that the run is compared with, then the requests without an answer, then
# lm-eval's metrics over all answers


def execute(
    run: Run, models: ModelPool, *, compute: bool = True, begin: Callable[[], None] = lambda: None
) -> Outcome:
    """Return the stored result, or compute the missing parts of a run and of the runs that it is compared with.

    The same call after an interruption continues. With `compute=False` only a stored result is returned. Raises
    RunHeldError if another process works on this run, MoeLabError if memory does not suffice, and ResultsError if
    nothing is stored and nothing may be computed.

    Args:
        begin: called when the run is to be computed and no other process works on it.
    """
    stored = stored_result(run, compute=compute)
    if stored is not None:
        return stored
    if not compute:
        raise ResultsError(f"{run.folder.name} has no stored result any more. mode=run computes it.")
    with run.store.held(), run.store.status(), memory_errors(run):
        begin()
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
    """The scores and samples of a run to compare with, read or computed."""
    stored = stored_with_samples(run)
    if stored is None:
        with run.store.held():
            stored = stored_with_samples(run)
            if stored is None:
                with run.store.status():
                    results = evaluate_run(run, models, _compared_results(run, models))
                stored = results, read_samples(results)
    results, samples = stored
    return {
        "run_id": run.run_id,
        "results": results["results"],
        "samples": samples,
        "rounding": results.rounding.measured,
    }
