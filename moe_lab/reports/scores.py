"""The score table of a command: lines of runs, and of means over seeds.

There is a line for each run, task and run that it is compared with. The terminal, pages, data
frames, W&B and plots show these lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from moe_lab.reports.columns import Column, count, fixed, numbers, seconds
from moe_lab.reports.labels import run_labels, settings
from moe_lab.reports.score_columns import score_columns
from moe_lab.reports.score_line import JudgeKey, ScoreLine
from moe_lab.results.family import NO_COMPARISONS, Family
from moe_lab.results.marks import PART
from moe_lab.results.model import BASE, RunResult, compared_names
from moe_lab.results.score_table import SeedGroup
from moe_lab.results.scores import shown_scores

JUDGED: tuple[tuple[str, JudgeKey], ...] = (
    ("empty", "empty"),
    ("cut", "all_cut"),
)
"""Columns of judged scores with their numbers in `JudgeCounts`. A column without a number above 0
is not shown."""


@dataclass(frozen=True)
class CommandTable:
    """The scores of a command."""

    runs: Sequence[RunResult]
    """Each after the runs that it is compared with."""
    groups: Sequence[SeedGroup] = ()
    """The results by configuration; those with a summary are means over seeds."""
    family: Family = NO_COMPARISONS

    @cached_property
    def labels(self) -> list[str]:
        """The settings of each run."""
        return run_labels(self.runs)

    @cached_property
    def lines(self) -> list[ScoreLine]:
        """The scores of all runs, each compared with base and then with its other runs.

        Then the means over seeds.
        """
        return [*self._lines_of_runs(), *self._lines_of_means()]

    def _lines_of_runs(self) -> list[ScoreLine]:
        """The lines of single runs."""
        lines = []
        for run, label in zip(self.runs, self.labels, strict=True):
            for other in (BASE, *run.compared):
                for score in shown_scores(run, other):
                    lines.append(ScoreLine(self.family.correct(score), label, [run]))
        return lines

    def _lines_of_means(self) -> list[ScoreLine]:
        """The lines of means over seeds; none for a command without several seeds."""
        groups = [group for group in self.groups if group.summary is not None]
        no_seeds = [None] * len(groups)
        labels = settings([group.results[0].overrides for group in groups], no_seeds)
        lines = []
        for group, label in zip(groups, labels, strict=True):
            for other in (BASE, *compared_names(group.results)):
                for score in group.scores(other):
                    if score.value is not None:  # predict_only computes no score
                        lines.append(ScoreLine(self.family.correct(score), label, group.results))
        return lines

    @cached_property
    def shown(self) -> list[ScoreLine]:
        """The lines of a short table: a mean replaces its seeds, a group replaces its parts."""
        averaged: set[str] = set()
        for group in self.groups:
            if group.summary:
                averaged.update(result.run_id for result in group.results)
        lines = []
        for line in self.lines:
            if line.score.run_id not in averaged and PART not in line.score.marks:
                lines.append(line)
        return lines

    @property
    def marks(self) -> list[str]:
        """The notes of all lines, such as PARTIAL."""
        marks: list[str] = []
        for line in self.lines:
            marks += line.score.marks
        return marks

    def times_base(self, line: ScoreLine) -> float | None:
        """The tokens of a line's run, divided by those of its base model's run.

        None if one of the two numbers is missing, or the base model's is 0.
        """
        tokens = line.cost("tokens_in")
        base_tokens = self._base_tokens(line.results[0])
        if tokens is None or not base_tokens:
            return None
        return tokens / base_tokens

    def _base_tokens(self, result: RunResult) -> float | None:
        """The tokens of the base model's run that a result is compared with, of the result itself
        if it is compared with none. None if this run is not in the table."""
        base_id = result.base_id or result.run_id
        for run in self.runs:
            if run.run_id == base_id:
                return run.cost.tokens_in
        return None

    def columns(self, lines: Sequence[ScoreLine] | None = None) -> list[Column]:
        """The columns of `lines` (by default `shown`), with the cost of their runs."""
        if lines is None:
            lines = self.shown
        *columns, notes = score_columns(lines)
        columns += _judge_columns(lines)
        columns += self._cost_columns(lines)
        columns.append(notes)
        return columns

    def _cost_columns(self, lines: Sequence[ScoreLine]) -> list[Column]:
        """The cost of each run, in its line that is compared with base."""
        times: list[float | None] = []
        tokens: list[float | None] = []
        times_base: list[float | None] = []
        for line in lines:
            has_cost = line.score.other == BASE
            times.append(line.cost("wall_seconds") if has_cost else None)
            tokens.append(line.cost("tokens_in") if has_cost else None)
            times_base.append(self.times_base(line) if has_cost else None)
        return [
            numbers("time", times, seconds, spare=5),
            numbers("tokens", tokens, count, spare=6),
            numbers("× base", times_base, fixed, spare=1),
        ]


def _judge_columns(lines: Sequence[ScoreLine]) -> list[Column]:
    """The numbers of the judge of each line, in its line that is compared with base (`JUDGED`)."""
    columns = []
    for heading, key in JUDGED:
        counts = []
        for line in lines:
            has_counts = line.score.other == BASE
            counts.append(line.of_judge(key) if has_counts else None)
        if any(counts):
            columns.append(numbers(heading, counts, "{:g}".format))
    return columns
