"""A run as `prepare` makes it, and the outcome that `execute` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config
from moe_lab.metrics.stored import stored_metrics
from moe_lab.results.folder import RunFolder, older_intervals
from moe_lab.results.verdicts import waiting

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.methods.method import Method
    from moe_lab.models.facts import ModelFacts
    from moe_lab.tasks.judges.judge import Judge


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, checked and named, nothing computed."""

    config: Config
    run_id: str
    """SHA-256 of what determines its numbers (`moe_lab.runs.identity`)."""
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
    """What else it is compared with on the same documents, by name (`Method.comparisons`)."""
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
