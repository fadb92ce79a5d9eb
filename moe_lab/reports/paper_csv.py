"""The table of an experiment as CSV: one line per cell, numbers as they are stored.

`value` is the mean over `seeds` runs, `std` their standard deviation, `low` and `high` the 95% interval over documents;
`run_id` lists the runs of all seeds, `study` is the folder of the study that tuned them. Averages come last.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from moe_lab.reports.average import averages
from moe_lab.reports.experiment import Experiment, Published
from moe_lab.reports.table_cell import TableCell, published_of

CSV_COLUMNS = (
    "metric",
    "value",
    "std",
    "low",
    "high",
    "n",
    "seeds",
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
    "study",
    "problem",
)


def csv_text(experiment: Experiment, cells: Sequence[TableCell]) -> str:
    """One line per cell, then one per average; numbers as they are stored."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=[*experiment.keys, *CSV_COLUMNS], lineterminator="\n")
    writer.writeheader()
    for cell in [*cells, *averages(experiment, cells)]:
        published = published_of(experiment, cell)
        writer.writerow(
            {**cell.coordinates, **_csv_numbers(cell, experiment.metric), **_csv_published(published)}
        )
    return stream.getvalue()


def _csv_numbers(cell: TableCell, metric: str) -> dict[str, Any]:
    study = None if cell.study is None else cell.study.name
    numbers: dict[str, Any] = {"run_id": cell.run_id, "study": study, "problem": cell.problem}
    row = cell.row(metric)
    if row is None:
        return numbers
    low, high = row.interval or (None, None)
    difference_low, difference_high = row.difference_interval or (None, None)
    return {
        **numbers,
        "run_id": row.run_id,
        "metric": row.metric,
        "value": row.value,
        "std": row.std,
        "low": low,
        "high": high,
        "n": row.n,
        "seeds": row.seeds,
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
