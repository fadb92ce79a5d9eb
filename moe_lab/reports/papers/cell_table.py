"""An experiment with its cells, also as a data frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moe_lab.reports.papers.averages import averages
from moe_lab.reports.papers.cells import TableCell, published_of
from moe_lab.reports.papers.experiment import MEASURE, Experiment
from moe_lab.results.family import NO_COMPARISONS, Family
from moe_lab.results.score import NO_SCORE, ComparisonKey

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = ["cell", *NO_SCORE.columns(), "published"]


@dataclass(frozen=True)
class CellTable:
    """An experiment with the cells of its table."""

    experiment: Experiment
    cells: Sequence[TableCell]
    family: Family = NO_COMPARISONS
    """The families of the comparisons of the command."""

    def frame(self, cells: Sequence[TableCell] | None = None, **places: Sequence[str]) -> DataFrame:
        """One row per measured cell: the TableCell and its numbers (COLUMNS).

        Missing numbers are None.

        Args:
            cells: other cells of the experiment, its averages for example.
            places: columns of coordinates on some axes; of the numbers' own columns for cells
                without these axes.
        """
        from pandas import DataFrame

        rows = []
        for cell in self.cells if cells is None else cells:
            score = cell.score()
            if score is None or score.value is None:
                continue
            published = published_of(self.experiment, cell)
            row = score.columns()
            row["cell"] = cell
            row["published"] = None if published is None else published.fraction
            known = row | cell.coordinates
            for name, keys in places.items():
                row[name] = ", ".join(known[key] for key in keys)
            rows.append(row)
        return DataFrame(rows, columns=list(dict.fromkeys([*COLUMNS, *places])), dtype=object)

    def varied(self, keys: Sequence[str]) -> list[str]:
        """The axes on which its cells differ."""
        varied = []
        for key in keys:
            values = {cell.coordinates[key] for cell in self.cells}
            if len(values) > 1:
                varied.append(key)
        return varied


def p_values(
    experiment: Experiment, cells: Sequence[TableCell]
) -> dict[ComparisonKey, float | None]:
    """The uncorrected p of each comparison of an experiment: of its cells and averages."""
    p_by_comparison = {}
    for cell in [*cells, *averages(experiment, cells)]:
        for score in cell.scores().values():
            p_by_comparison[score.comparison] = score.p
    return p_by_comparison


def varied_label(cell: TableCell, cells: Sequence[TableCell]) -> str:
    """The method, and the other coordinates in which its cells differ.

    Model, task and metric are left out.
    """
    method = _method_of(cell)
    same_method = [other for other in cells if _method_of(other) == method]
    parts = []
    if method != "-":
        parts.append(method)
    for key, value in cell.coordinates.items():
        if key in ("model", "task", "method", MEASURE) or value == "-":
            continue
        if any(other.coordinates.get(key) != value for other in same_method):
            parts.append(f"{key.rpartition('.')[2]}={value}")
    return " ".join(parts)


def _method_of(cell: TableCell) -> str:
    """The method of a cell; a dash without that axis."""
    return cell.coordinates.get("method", "-")
