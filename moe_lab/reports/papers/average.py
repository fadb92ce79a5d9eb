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
    scored = [cell for cell in cells if not cell.of_training]
    values = list(dict.fromkeys(cell.coordinates[axis] for cell in scored))
    if len(values) < 2:
        return []  # it would repeat the one cell
    lines: dict[tuple[str, ...], dict[str, TableCell]] = {}
    for cell in scored:
        place = tuple(cell.coordinates[key] for key in experiment.keys if key != axis)
        lines.setdefault(place, {})[cell.coordinates[axis]] = cell
    return [_average(line, axis, values) for line in lines.values()]


def shown_cells(experiment: Experiment, cells: Sequence[TableCell]) -> list[TableCell]:
    """The cells of a table and their averages; the averages alone where their axis is neither row nor column.

    Numbers of trainings belong to no task and stand beside the averages.
    """
    means = averages(experiment, cells)
    alone = experiment.average not in [*experiment.rows, *experiment.columns]
    kept = [cell for cell in cells if cell.of_training] if means and alone else cells
    return [*kept, *means]


def _average(line: dict[str, TableCell], axis: str, values: Sequence[str]) -> TableCell:
    some = next(iter(line.values()))
    absent = TableCell(coordinates={}, run_id=None)
    return TableCell(
        coordinates={**some.coordinates, axis: AVERAGE},
        run_id=None,
        parts=[line.get(name, absent) for name in values],
    )
