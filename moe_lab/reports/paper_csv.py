"""The table of an experiment as CSV: one line per cell, numbers as they are stored."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from moe_lab.reports.experiment import Experiment, Published
from moe_lab.reports.table_cell import TableCell, published_of

CSV_COLUMNS = (
    "metric",
    "value",
    "low",
    "high",
    "n",
    "difference",
    "difference_low",
    "difference_high",
    "p_mcnemar",
    "marks",
    "published",
    "published_unit",
    "published_place",
    "published_mark",
    "run_id",
    "problem",
)


def csv_text(experiment: Experiment, cells: Sequence[TableCell]) -> str:
    """One line per cell, numbers as they are stored."""
    keys = [*experiment.rows, *experiment.columns]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=[*keys, *CSV_COLUMNS], lineterminator="\n")
    writer.writeheader()
    for cell in cells:
        published = published_of(experiment, cell)
        writer.writerow(
            {**cell.coordinates, **_csv_numbers(cell, experiment.metric), **_csv_published(published)}
        )
    return stream.getvalue()


def _csv_numbers(cell: TableCell, metric: str) -> dict[str, Any]:
    numbers: dict[str, Any] = {"run_id": cell.run_id, "problem": cell.problem}
    row = cell.row(metric)
    if row is None:
        return numbers
    low, high = row.interval or (None, None)
    difference_low, difference_high = row.difference_interval or (None, None)
    return {
        **numbers,
        "metric": row.metric,
        "value": row.value,
        "low": low,
        "high": high,
        "n": row.n,
        "difference": row.difference,
        "difference_low": difference_low,
        "difference_high": difference_high,
        "p_mcnemar": row.p_mcnemar,
        "marks": " ".join(row.marks),
    }


def _csv_published(published: Published | None) -> dict[str, Any]:
    if published is None:
        return {}
    return {
        "published": published.value,
        "published_unit": published.unit,
        "published_place": published.place,
        "published_mark": published.mark,
    }
