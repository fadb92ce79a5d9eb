"""Whether a run's stored result is returned, or has to be computed, the first time or again."""

from __future__ import annotations

from typing import Any

from moe_lab.results.folder import version_marks
from moe_lab.results.samples import check_samples, read_samples
from moe_lab.results.stored_files import DamagedError, warn_once
from moe_lab.runs.run import Outcome, Run

FROM_ANSWERS = "It is made again from the stored answers."


def stored_result(run: Run) -> Outcome | None:
    """The stored result; None if there is none, or if `rerun`, a comparison, metrics or samples ask for another one.

    With mode=report a stored result is returned as it is, even if a comparison or the metrics are missing.
    """
    results = None if run.config.rerun else run.stored()
    if results is None:
        return None
    block = results["moe_lab"]
    path, marks = run.folder / "results.json", version_marks(block)
    outcome = Outcome(run=run, results=results, stored=True, path=path, marks=marks)
    if run.config.mode == "report":
        return outcome
    compared = (run.baseline is None or "baseline" in block) and all(
        name in block.get("compared", {}) for name in run.comparisons
    )
    measured = all(each.measured for each in (run, *run.compared_runs.values()))
    return outcome if compared and measured and _has_samples(run, results) else None


def _has_samples(run: Run, results: dict[str, Any]) -> bool:
    """Whether the sample logs beside results.json are complete; the stored answers suffice to write them again."""
    try:
        check_samples(run.folder, results)
    except DamagedError as error:
        warn_once(f"{error.problem}. {FROM_ANSWERS}")
        return False
    return True


def stored_with_samples(run: Run) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The content of results.json and the sample logs; None if the run has to be evaluated."""
    results = run.stored()
    if results is None or not run.measured:
        return None
    try:
        return results, read_samples(run.folder, results)
    except DamagedError as error:
        warn_once(f"{error.problem}. {FROM_ANSWERS}")
        return None
