"""The `judges` of a run in results.json: who judged its answers, and how many have a verdict."""

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from moe_lab.results.stored import Stored


class JudgeCounts(Stored):
    """How many answers to a task a judge was asked about."""

    documents: int
    judged: int
    failed: dict[str, int] = Field({})
    """By reason."""
    empty: int | None = None
    """Answers without text; None in results of earlier versions."""
    cut: dict[str, int] | None = None
    """Exchanges that were too long for the judge, by the part that it did not read whole (prompt,
    answer); None in results of earlier versions."""

    @property
    def all_cut(self) -> int | None:
        """The number of exchanges that were too long for the judge."""
        return None if self.cut is None else sum(self.cut.values())


class JudgeVerdicts(Stored):
    """The verdicts of one judge on the answers of a run."""

    identity: Any = None
    toy: bool = False
    metrics: list[str]
    tasks: dict[str, JudgeCounts] = Field({})

    def counts(self, task: str | None) -> list[JudgeCounts]:
        """The counts of a task, or of all tasks."""
        return [counts for name, counts in self.tasks.items() if task in (None, name)]

    def judged_all(self, task: str | None) -> bool:
        """Whether all answers of a task, or of all tasks, have a verdict."""
        return all(counts.judged == counts.documents for counts in self.counts(task))

    def unjudged(self, name: str) -> Iterator[str]:
        """A line for each task with unjudged answers: how many were judged, and why the others were
        not."""
        for task, counts in self.tasks.items():
            if self.judged_all(task):
                continue
            reasons = [f"{number} {reason}" for reason, number in counts.failed.items()]
            judged = f"{task}, {name}: judged {counts.judged:,} of {counts.documents:,} answers"
            yield f"{judged} ({'; '.join(reasons)})"
