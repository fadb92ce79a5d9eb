"""The average over an experiment's tasks, or over any other of its axes: one more cell in each of its lines."""

from __future__ import annotations

from collections.abc import Sequence

from moe_lab.reports.papers.cell import TableCell
from moe_lab.reports.papers.experiment import AVERAGE, Experiment

NOTE = (
    "The average counts every task alike and stands only where all of them are measured; its interval is that of "
    "documents drawn anew from each task (Zou and Donner, 2008)."
)


def averages(experiment: Experiment, cells: Sequence[TableCell]) -> list[TableCell]:
    """One average for each line of cells that differ in `experiment.average` alone; none without that axis.

    The average of an incomplete line has no score.
    """
    axis = experiment.average
    if axis is None:
        return []
    values = list(dict.fromkeys(cell.coordinates[axis] for cell in cells))
    if len(values) == 1:
        return []  # it would repeat the one cell
    lines: dict[tuple[str, ...], dict[str, TableCell]] = {}
    for cell in cells:
        place = tuple(cell.coordinates[key] for key in experiment.keys if key != axis)
        lines.setdefault(place, {})[cell.coordinates[axis]] = cell
    return [_average(line, axis, values) for line in lines.values()]


def shown_cells(experiment: Experiment, cells: Sequence[TableCell]) -> list[TableCell]:
    """The cells of a table and their averages; the averages alone where their axis is neither row nor column."""
    means = averages(experiment, cells)
    alone = experiment.average not in [*experiment.rows, *experiment.columns]
    return means if means and alone else [*cells, *means]


def _average(line: dict[str, TableCell], axis: str, values: Sequence[str]) -> TableCell:
    some = next(iter(line.values()))
    absent = TableCell(coordinates={}, run_id=None)
    return TableCell(
        coordinates={**some.coordinates, axis: AVERAGE},
        run_id=None,
        parts=[line.get(name, absent) for name in values],
    )
