"""The cells of a paper's table: their places, and their results or why there are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moe_lab.metrics.stored import StoredMetrics
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.reports.papers.expert_scores import expert_score
from moe_lab.reports.papers.metric_names import EXPERT, HEADLINE
from moe_lab.reports.papers.published import Published
from moe_lab.reports.papers.training_scores import METRICS, TRAINING, training_score
from moe_lab.reports.papers.units import unit_of
from moe_lab.results.family import NO_COMPARISONS, Family
from moe_lab.results.means import mean_score, task_mean
from moe_lab.results.model import BASE, RunResult, compared_names
from moe_lab.results.score import Score
from moe_lab.results.scores import scores_of
from moe_lab.results.seed_summary import SeedSummary


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """One cell of a table: its coordinates, and its results or why there are none."""

    coordinates: dict[str, str]
    run_id: str | None
    """The run of its first seed."""
    metric: str = HEADLINE
    """`headline`, an lm-eval `metric,filter`, an expert metric (`papers/expert_scores.py`) or a
    number of a training (`papers/training_scores.py`)."""
    results: list[RunResult] = field(default_factory=list)
    """One per seed that is stored."""
    expert: list[StoredMetrics | None] = field(default_factory=list)
    """The expert metrics of each of `results`, or None."""
    summary: SeedSummary | None = None
    """Of `results`, if there are several."""
    studies: Sequence[Path] = ()
    """The folders of the studies that tuned it: one, or one per seed."""
    config: Any = None
    """The cell's `moe_lab.config.schema.Config`."""
    problem: str | None = None
    parts: Sequence[TableCell] = ()
    """The cells whose mean it is; such a cell has no results of its own."""

    def score(self, other: str = BASE) -> Score | None:
        """The score of the cell's first task; None if nothing is stored for it.

        It is that of its run, the mean over its seeds, or the mean of its parts.

        Args:
            other: the run to compare with: the base model's, or a key of `compared` in
                results.json.
        """
        if self.parts:
            return task_mean([part.score(other) for part in self.parts])
        if self.of_training:
            return training_score(self.results, self.metric)

        if self.metric.startswith(EXPERT):
            scores = self._expert_scores(other)
        else:
            scores = self._scores_of_results(other)
        if not scores:
            return None
        if len(scores) == 1:
            return scores[0]
        summary = {} if self.summary is None else self.summary.scores
        return mean_score(scores, summary)

    def _expert_scores(self, other: str) -> list[Score]:
        """One per result that has expert metrics."""
        scores = []
        for result, metrics in zip(self.results, self.expert, strict=True):
            if metrics is not None:
                scores.append(expert_score(result, metrics, self.metric, other))
        return scores

    def _scores_of_results(self, other: str) -> list[Score]:
        """One per result whose first task has the metric."""
        metric = None if self.metric == HEADLINE else self.metric
        scores = []
        for result in self.results:
            of_tasks = scores_of(result, metric, other)
            # a task without the metric has the score of its first metric
            if of_tasks and metric in (None, of_tasks[0].metric):
                scores.append(of_tasks[0])
        return scores

    def scores(self, family: Family = NO_COMPARISONS) -> dict[str, Score]:
        """Its scores, with the corrected p of the family, by the run that they are compared with:
        the base model's first, then the keys of `compared`. Empty without a score."""
        results = list(self.results)
        for part in self.parts:
            results += part.results
        scores = {}
        for other in [BASE, *compared_names(results)]:
            score = self.score(other)
            if score is not None:
                scores[other] = family.correct(score)
        return scores

    def shows(self) -> str | None:
        """The metric of the cell in words: its unit, or its name and whether lower is better.

        None for an average, and for a cell without a score.
        """
        if self.parts:
            return None
        score = self.score()
        if score is None:
            return None
        if score.metric.startswith(EXPERT):
            return unit_of(score.metric)
        if self.of_training:
            return METRICS[score.metric].meaning
        if score.lower_is_better:
            return f"{score.metric}, lower is better"
        return score.metric

    @property
    def of_training(self) -> bool:
        """Whether the cell is a number of a training, which is the same for all tasks."""
        return self.metric.startswith(TRAINING)

    @property
    def name(self) -> str:
        """Its coordinates in one line."""
        return ", ".join(self.coordinates.values())


def published_of(experiment: Experiment, cell: TableCell) -> Published | None:
    """The paper's number for a cell; None if it gives none.

    The first number counts whose coordinates are all those of the cell. It may name fewer axes.
    """
    for published in experiment.paper:
        if published.cell.items() <= cell.coordinates.items():
            return published
    return None
