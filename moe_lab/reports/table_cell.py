"""One cell of a paper's table: its place, its stored results, and the paper's number for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moe_lab.reports.experiment import Experiment, Published
from moe_lab.reports.numbers import Row, rows_of


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """One cell of a table: where it stands, and its stored results, or why there are none."""

    coordinates: dict[str, str]
    run_id: str | None
    results: dict[str, Any] | None
    problem: str | None = None

    def row(self, metric: str) -> Row | None:
        """The numbers of the cell's first task; `metric` is `headline` or an lm-eval `metric,filter`."""
        rows = [] if self.results is None else rows_of(self.results, None if metric == "headline" else metric)
        return rows[0] if rows else None


def published_of(experiment: Experiment, cell: TableCell) -> Published | None:
    """The paper's number for a cell, where it gives one."""
    for published in experiment.paper:
        if all(cell.coordinates.get(key) == value for key, value in published.cell.items()):
            return published
    return None
