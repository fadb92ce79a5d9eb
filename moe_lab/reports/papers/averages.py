"""The average over an experiment's tasks, or over another axis.

It is one more cell in each line of the table.
"""

from collections.abc import Sequence

from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import AVERAGE, Experiment

NOTE = (
    "The average weights all tasks equally, and is shown only if all of them are measured. Its "
    "interval treats the documents of each task as an independent sample (Zou and Donner, 2008)."
)


def averages(experiment: Experiment, cells: Sequence[TableCell]) -> list[TableCell]:
    """One average for each line of cells that differ in `experiment.average` alone.

    Empty for an experiment without that axis, and where the cells have one value on it. The average
    of an incomplete line is a cell whose score is None.
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
    average_cells = []
    for line in lines.values():
        first = next(iter(line.values()))
        average = TableCell(
            coordinates={**first.coordinates, axis: AVERAGE},
            run_id=None,
            parts=[line.get(value, absent) for value in values],
        )
        average_cells.append(average)
    return average_cells


def shown_cells(experiment: Experiment, cells: Sequence[TableCell]) -> list[TableCell]:
    """The cells of a table and their averages.

    If the axis of the averages is neither row nor column, only the averages, and the numbers of
    trainings, which belong to no task.
    """
    shown = list(cells)
    if averages_alone(experiment, cells):
        shown = [cell for cell in cells if cell.of_training]
    return [*shown, *averages(experiment, cells)]


def averages_alone(experiment: Experiment, cells: Sequence[TableCell]) -> bool:
    """Whether averages are shown instead of the cells whose averages they are."""
    if experiment.average in [*experiment.rows, *experiment.columns]:
        return False
    return bool(averages(experiment, cells))
