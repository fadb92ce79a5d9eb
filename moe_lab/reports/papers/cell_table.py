"""The cells of an experiment as a data frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moe_lab.reports.papers.cell import TableCell, published_of
from moe_lab.reports.papers.experiment import Experiment

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = [
    "cell",
    "model",
    "method",
    "task",
    "metric",
    "value",
    "stderr",
    "std",
    "low",
    "high",
    "base",
    "documents",
    "seeds",
    "marks",
    "published",
]


@dataclass(frozen=True)
class CellTable:
    """An experiment with the cells of its table."""

    experiment: Experiment
    cells: Sequence[TableCell]

    def frame(self, cells: Sequence[TableCell] | None = None) -> DataFrame:
        """One row per measured cell: the TableCell and its numbers (COLUMNS). Missing numbers are None.

        Args:
            cells: other cells of the experiment, its averages for example.
        """
        from pandas import DataFrame

        rows = []
        for cell in self.cells if cells is None else cells:
            score, published = cell.score(), published_of(self.experiment, cell)
            if score is None or score.value is None:
                continue
            numbers = (
                score.value,
                score.stderr,
                score.std,
                *(score.interval or (None, None)),
                score.baseline,
            )
            names = (cell, score.model, score.method, score.task, score.metric)
            paper = None if published is None else published.fraction
            rows.append((*names, *numbers, score.n, score.seeds, " ".join(score.marks), paper))
        return DataFrame(rows, columns=COLUMNS, dtype=object)


def coordinates(frame: DataFrame, axis: str) -> list[str]:
    """The cells' places on an axis of the experiment; the column `axis` for cells without a place on it."""
    return [cell.coordinates.get(axis, own) for cell, own in zip(frame["cell"], frame[axis], strict=True)]
