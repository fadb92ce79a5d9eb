"""A run, as `moe_lab.prepare` makes it, and its execution.

`execute` returns the stored result, or computes what is missing: the runs that it is compared with first, then the
unanswered requests, then lm-eval's metrics over all answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config import Config
from moe_lab.errors import ModelError, MoeLabError, ResultsError
from moe_lab.memory import memory_errors
from moe_lab.models.pool import ModelPool
from moe_lab.results.expert_metrics import stored_metrics
from moe_lab.results.judged import waiting
from moe_lab.results.store import RunFolder, older_intervals, version_marks
from moe_lab.results.stored import DamagedError, tell_once

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.judges.judge import Judge
    from moe_lab.methods.method import Method
    from moe_lab.models.facts import ModelFacts


FROM_ANSWERS = "It is made again from the stored answers."


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, checked and named, nothing computed."""

    config: Config
    run_id: str
    """SHA-256 of what determines its numbers (`moe_lab.results.identity`)."""
    folder: Path
    facts: ModelFacts
    method: Method
    tasks: TaskDict
    """lm-eval's tasks by name, with their documents."""
    samples: dict[str, list[int]]
    """Document numbers per task."""
    baseline: Run | None = None
    """The untouched model on the same documents, where one is wanted."""
    compared: dict[str, Run] = field(default_factory=dict)
    """What else it is compared with on the same documents, by name (`Method.compared_with`)."""
    judges: tuple[Judge, ...] = ()
    """Who judges its answers."""
    answers_id: str
    """The same SHA-256 without the judges: of what determines the answers."""

    @property
    def done(self) -> bool:
        """Whether its result is stored."""
        return self.stored() is not None

    @property
    def needed(self) -> dict[str, Run]:
        """The runs that come first: "baseline", and what else it is compared with."""
        return ({"baseline": self.baseline} if self.baseline is not None else {}) | self.compared

    @property
    def measured(self) -> bool:
        """Whether the metrics that are asked for are stored, no answer waits for a judge, and intervals are current."""
        stored = self.stored()
        measured = self.config.metrics == "none" or self.stored_metrics() is not None
        current = stored is None or not older_intervals(stored["moe_lab"])
        return measured and current and not (self.judges and waiting(stored))

    @property
    def num_documents(self) -> int:
        return sum(len(numbers) for numbers in self.samples.values())

    @cached_property
    def partial(self) -> bool:
        """Whether a task has documents that the run leaves out."""
        return any(
            len(self.samples[name]) < len(task.task_docs) for name, task in self.tasks["tasks"].items()
        )

    @property
    def store(self) -> RunFolder:
        return RunFolder(self.folder, self.run_id)

    def stored(self) -> dict[str, Any] | None:
        """The content of its results.json, if complete and of this run and hub commit."""
        return self.store.stored(self.facts.commit)

    def stored_metrics(self) -> dict[str, Any] | None:
        """The content of its expert_metrics.json, if complete and of this run and hub commit."""
        return stored_metrics(self.folder, self.run_id, self.facts.commit)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to."""

    run: Run
    results: dict[str, Any]
    """The content of results.json."""
    stored: bool
    """Whether the result was there already."""
    path: Path
    """Of results.json."""
    marks: list[str] = field(default_factory=list)
    """What a reader has to know of a stored result: made with other versions."""


def execute(run: Run, models: ModelPool) -> Outcome:
    """Compute what is missing of a run and of those that it is compared with, or return what is stored.

    The same call after an interruption continues. With mode=report a stored result is returned as it is, also where
    a comparison or the metrics are missing. Raises RunHeldError where another process works on this
    run, and MoeLabError where memory does not suffice.
    """
    from moe_lab.evaluation import evaluate_run

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
    from moe_lab.results.samples import check_samples

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
    from moe_lab.evaluation import evaluate_run
    from moe_lab.results.samples import read_samples

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
    from moe_lab.results.samples import read_samples

    results = run.stored()
    if results is None or not run.measured:
        return None
    try:
        return results, read_samples(run.folder, results)
    except DamagedError as error:
        tell_once(f"{error.told}. {FROM_ANSWERS}")
        return None
