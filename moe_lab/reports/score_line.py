"""One line of a command's score table: a score, the settings of its run, and its results."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from moe_lab.results.model import RunResult
from moe_lab.results.score import Score

JudgeKey = Literal["empty", "all_cut"]
"""A number of `JudgeCounts`."""


@dataclass(frozen=True)
class ScoreLine:
    """A score in a view of a command: that of a run, or a mean over seeds."""

    score: Score
    label: str
    """The settings of the run."""
    results: Sequence[RunResult] = ()
    """The run, or one per seed."""

    @property
    def name(self) -> str:
        """`<method> on <task> (<settings>)`; without a method `<settings> on <task>`."""
        score = self.score
        if not score.method:
            return f"{self.label} on {score.task}"
        if not self.label:
            return f"{score.method} on {score.task}"
        return f"{score.method} on {score.task} ({self.label})"

    def cost(self, key: str) -> float | None:
        """A number of `cost`. Several seeds have the mean; None if a number is missing."""
        return _complete_mean(getattr(result.cost, key) for result in self.results)

    def of_judge(self, key: JudgeKey) -> float | None:
        """A number of the score's judge.

        Several seeds have the mean; None if a number is missing.
        """
        return _complete_mean(self._judge_count(result, key) for result in self.results)

    def _judge_count(self, result: RunResult, key: JudgeKey) -> int | None:
        """The number of one result; None if no judge made the score."""
        counts = result.judge_counts(self.score.task, self.score.metric)
        if counts is None:
            return None
        count: int | None = getattr(counts, key)
        return count


def _complete_mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values; None without any, or if one of them is None."""
    known = []
    for value in values:
        if value is None:
            return None
        known.append(value)

    if not known:
        return None
    return fmean(known)
