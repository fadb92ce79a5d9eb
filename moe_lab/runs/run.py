"""`Run`, which `prepare` returns, and `Outcome`, which `execute` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lm_eval.tasks.manager import TaskDict

from moe_lab.config.schema import Config
from moe_lab.methods.method import Method
from moe_lab.metrics.stored import StoredMetrics, stored_metrics
from moe_lab.models.facts import ModelFacts
from moe_lab.results.confidence_files import StoredConfidence, stored_confidence
from moe_lab.results.folder import RunFolder
from moe_lab.results.model import RunResult
from moe_lab.results.task_scores import headline_of
from moe_lab.results.versions import decisive_versions
from moe_lab.tasks.judges import Judge
from moe_lab.tasks.lm_eval_versions.documents import evaluated_documents


@dataclass(frozen=True, kw_only=True)
class Run:
    """A checked run with its id, before anything is computed."""

    config: Config
    run_id: str
    """SHA-256 of everything that determines the numbers (`moe_lab.runs.identity.identity`)."""
    folder: Path
    facts: ModelFacts
    method: Method
    tasks: TaskDict
    """lm-eval's tasks by name, with their documents."""
    samples: dict[str, list[int]]
    """Document numbers per task."""
    baseline: Run | None = None
    """The base model on the same documents; None with baseline=false."""
    comparisons: dict[str, Run] = field(default_factory=dict)
    """Runs of other methods on the same documents, by name (`Method.comparisons`)."""
    judges: tuple[Judge, ...] = ()
    """The judges of the answers."""

    @property
    def done(self) -> bool:
        """Whether the result is stored."""
        return self.stored() is not None

    @property
    def compared_runs(self) -> dict[str, Run]:
        """All runs that this run is compared with, "baseline" first.

        They are executed before this run.
        """
        if self.baseline is None:
            return dict(self.comparisons)
        return {"baseline": self.baseline, **self.comparisons}

    @property
    def measured(self) -> bool:
        """Whether a result is stored with the wanted metrics and current intervals."""
        stored = self.stored()
        if stored is None or stored.older_intervals:
            return False
        if self.config.metrics == "confidence":
            return self.confidence() is not None
        return self.config.metrics == "none" or self.stored_metrics() is not None

    @property
    def num_documents(self) -> int:
        """The number of evaluated documents, of all tasks."""
        return sum(len(numbers) for numbers in self.samples.values())

    @cached_property
    def partial(self) -> bool:
        """Whether the run leaves out documents of a task."""
        return any(
            len(self.samples[name]) < len(evaluated_documents(task))
            for name, task in self.tasks["tasks"].items()
        )

    @property
    def store(self) -> RunFolder:
        """The run's folder, with its lock and stored result."""
        return RunFolder(self.folder, self.run_id)

    def check_free(self) -> None:
        """Raise RunHeldError if another process works on this run or on a run that it is compared
        with."""
        for run in (*self.compared_runs.values(), self):
            if not run.done:
                run.store.check_free()

    def stored(self) -> RunResult | None:
        """The result if it is complete and of this run and hub commit, else None.

        It is shown by the metric and with the settings that the configuration asks for, whatever it
        was computed for: a command without a key whose value is the default has the same run.
        """
        stored = self.store.stored(self.facts.commit)
        if stored is None:
            return None
        headline = headline_of(self.config.task.metric, stored.lm_eval.scores(stored.task.tasks[0]))
        overrides = []
        for override in self.config.overrides:
            if not override.startswith("mode="):  # the command that is shown computes the run
                overrides.append(override)
        shown = {
            "asked": headline,
            "overrides": overrides,
            "config_dirs": list(self.config.config_dirs),
        }
        return stored.model_copy(update=shown)

    def stored_metrics(self) -> StoredMetrics | None:
        """The stored metrics of `metrics=expert`.

        None if they are incomplete or of another run or hub commit.
        """
        if self.config.metrics != "expert":
            return None
        return stored_metrics(self.folder, self.run_id, self.facts.commit)

    def confidence(self) -> StoredConfidence | None:
        """The stored numbers of `metrics=confidence`; None if they are of another run, hub commit
        or headline metric."""
        if self.config.metrics != "confidence":
            return None
        confidence = stored_confidence(self.folder, self.run_id, self.facts.commit)
        if confidence is None or confidence.content["metric"] != self.config.task.metric:
            return None
        return confidence

    @property
    def answers_header(self) -> dict[str, Any]:
        """The header of the log of answers, which identifies the run and the versions."""
        return {"run_id": self.run_id, "commit": self.facts.commit, "versions": decisive_versions()}


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    run: Run
    results: RunResult
    stored: bool
    """Whether the result was stored before this command."""

    @property
    def path(self) -> Path:
        """The path of results.json."""
        return self.run.folder / "results.json"
