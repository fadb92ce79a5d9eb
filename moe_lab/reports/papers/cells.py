"""The cells of a paper's table: their places, stored results and averages, also as a data frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.metrics.stored import StoredMetrics
from moe_lab.reports.papers.experiment import AVERAGE, MEASURE, Experiment, Published
from moe_lab.reports.papers.metrics import (
    EXPERT,
    METRICS,
    TRAINING,
    expert_score,
    training_score,
    unit_of,
)
from moe_lab.results.family import NO_COMPARISONS, Family
from moe_lab.results.means import mean_score, task_mean
from moe_lab.results.model import BASE, RunResult, compared_names
from moe_lab.results.score import NO_SCORE, ComparisonKey, Score
from moe_lab.results.scores import scores_of
from moe_lab.results.seed_summary import SeedSummary

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """One cell of a table: its coordinates, and its stored results or the reason why there are none."""

    coordinates: dict[str, str]
    run_id: str | None
    """The run of its first seed."""
    metric: str = "headline"
    """`headline`, an lm-eval `metric,filter`, an expert metric or a number of a training (`papers/metrics.py`)."""
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
        """The score of the cell's first task: the score of its run, the mean over its seeds, or that of its parts.

        Args:
            other: the run to compare with: the base model's, or a key of `compared` in results.json.
        """
        if self.parts:
            return task_mean([part.score(other) for part in self.parts])
        if self.of_training:
            return training_score(self.results, self.metric)
        if self.metric.startswith(EXPERT):
            measured = zip(self.results, self.expert, strict=True)
            scores = [
                expert_score(results, one, self.metric, other) for results, one in measured if one
            ]
        else:
            metric = None if self.metric == "headline" else self.metric
            scores = [
                own[0] for results in self.results if (own := scores_of(results, metric, other))
            ]
            # a task without the metric has the score of its first metric
            scores = [score for score in scores if metric in (None, score.metric)]
        if len(scores) < 2:
            return scores[0] if scores else None
        return mean_score(scores, {} if self.summary is None else self.summary.scores)

    def scores(self, family: Family = NO_COMPARISONS) -> dict[str, Score]:
        """Its scores by the run to compare with, the base model's first, with the corrected p of the family."""
        runs = (result for each in self.parts or [self] for result in each.results)
        found = {other: self.score(other) for other in [BASE, *compared_names(runs)]}
        return {other: family.correct(score) for other, score in found.items() if score is not None}

    def shows(self) -> str | None:
        """The metric of the cell, with its unit, and whether lower is better; None without a score of its own."""
        score = None if self.parts else self.score()
        if score is None:
            return None
        if score.metric.startswith(EXPERT):
            return unit_of(score.metric)
        if self.of_training:
            return METRICS[score.metric][3]
        return f"{score.metric}, lower is better" if score.lower_is_better else score.metric

    @property
    def of_training(self) -> bool:
        """Whether the cell is a number of a training, which is the same for all tasks."""
        return self.metric.startswith(TRAINING)

    @property
    def name(self) -> str:
        """Its coordinates in one line."""
        return ", ".join(self.coordinates.values())


def published_of(experiment: Experiment, cell: TableCell) -> Published | None:
    """The paper's number for a cell, where it gives one."""
    place = cell.coordinates.items()
    return next(
        (published for published in experiment.paper if published.cell.items() <= place), None
    )


def p_values(
    experiment: Experiment, cells: Sequence[TableCell]
) -> dict[ComparisonKey, float | None]:
    """The uncorrected p of each comparison of an experiment: of its cells and averages."""
    scores = [
        score for cell in [*cells, *averages(experiment, cells)] for score in cell.scores().values()
    ]
    return {score.comparison: score.p for score in scores}


# The average over an experiment's tasks, or over any other of its axes: one more cell in each of its lines

NOTE = (
    "The average weights all tasks equally, and is shown only if all of them are measured. Its interval treats the "
    "documents of each task as an independent sample (Zou and Donner, 2008)."
)


def averages(experiment: Experiment, cells: Sequence[TableCell]) -> list[TableCell]:
    """One average for each line of cells that differ in `experiment.average` alone; none without that axis.

    The average of an incomplete line has no score.
    """
    axis = experiment.average
    if axis is None:
        return []
    scored = [cell for cell in cells if not cell.of_training]
    values = list(dict.fromkeys(cell.coordinates[axis] for cell in scored))
    if len(values) < 2:
        return []  # it would repeat the one cell
    lines: dict[tuple[str, ...], dict[str, TableCell]] = {}
    for cell in scored:
        place = tuple(cell.coordinates[key] for key in experiment.keys if key != axis)
        lines.setdefault(place, {})[cell.coordinates[axis]] = cell
    absent = TableCell(coordinates={}, run_id=None)
    return [
        TableCell(
            coordinates={**next(iter(line.values())).coordinates, axis: AVERAGE},
            run_id=None,
            parts=[line.get(value, absent) for value in values],
        )
        for line in lines.values()
    ]


def shown_cells(experiment: Experiment, cells: Sequence[TableCell]) -> list[TableCell]:
    """The cells of a table and their averages; the averages alone where their axis is neither row nor column.

    Numbers of trainings belong to no task and are shown with the averages.
    """
    kept = (
        [cell for cell in cells if cell.of_training] if averages_alone(experiment, cells) else cells
    )
    return [*kept, *averages(experiment, cells)]


def averages_alone(experiment: Experiment, cells: Sequence[TableCell]) -> bool:
    """Whether averages are shown in place of the cells that they are of."""
    shown = experiment.average in [*experiment.rows, *experiment.columns]
    return not shown and bool(averages(experiment, cells))


# The cells of an experiment as a data frame

COLUMNS = ["cell", *NO_SCORE.columns(), "published"]


@dataclass(frozen=True)
class CellTable:
    """An experiment with the cells of its table."""

    experiment: Experiment
    cells: Sequence[TableCell]
    family: Family = NO_COMPARISONS
    """The families of the comparisons of the command."""

    def frame(self, cells: Sequence[TableCell] | None = None, **places: Sequence[str]) -> DataFrame:
        """One row per measured cell: the TableCell and its numbers (COLUMNS). Missing numbers are None.

        Args:
            cells: other cells of the experiment, its averages for example.
            places: columns of coordinates on some axes; of the numbers' own columns for cells without these axes.
        """
        from pandas import DataFrame

        rows = []
        for cell in self.cells if cells is None else cells:
            score, published = cell.score(), published_of(self.experiment, cell)
            if score is not None and score.value is not None:
                row = score.columns() | {
                    "cell": cell,
                    "published": published and published.fraction,
                }
                known = row | cell.coordinates
                rows.append(
                    row
                    | {name: ", ".join(known[key] for key in keys) for name, keys in places.items()}
                )
        return DataFrame(rows, columns=list(dict.fromkeys([*COLUMNS, *places])), dtype=object)

    def varied(self, keys: Sequence[str]) -> list[str]:
        """The axes on which its cells differ."""
        return [key for key in keys if len({cell.coordinates[key] for cell in self.cells}) > 1]


def varied_label(cell: TableCell, cells: Sequence[TableCell]) -> str:
    """The method, and of the other coordinates those in which its cells differ, without model, task and metric."""
    method = cell.coordinates.get("method", "-")
    own = [other.coordinates for other in cells if other.coordinates.get("method", "-") == method]
    varied = [
        f"{key.rpartition('.')[2]}={value}"
        for key, value in cell.coordinates.items()
        if key not in ("model", "task", "method", MEASURE)
        and value != "-"
        and any(other.get(key) != value for other in own)
    ]
    return " ".join(varied if method == "-" else [method, *varied])
