"""The table of an experiment as CSV: one line per cell, numbers as they are stored.

`value` is the mean over `seeds` runs, `std` their standard deviation, `low` and `high` the 95% interval over
documents (of a number of one training over its held-out rows), `seed_low` and `seed_high` that over seeds; `p_holm` is
`p_mcnemar`, the `p_randomization` of a score that is not made of 0 and 1, or the `p_seeds` of a mean over seeds,
corrected for all comparisons of the table; `without_neighbour`
counts the questions of a C3PO run that had no neighbour; `run_id` lists the runs of all seeds, `study` is the folder of
the study that tuned them. Averages come last. Runs that a run is compared with beside base (`compared` of results.json)
have columns of their own.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from moe_lab.reports.csv_rows import safe_row
from moe_lab.reports.papers.average import averages
from moe_lab.reports.papers.cell import TableCell, compared_names, published_of
from moe_lab.reports.papers.experiment import Experiment, Published
from moe_lab.reports.papers.told_apart import corrected_scores, place_of
from moe_lab.reports.scores import Score

COMPARED_COLUMNS = (
    "difference",
    "difference_low",
    "difference_high",
    "difference_seed_low",
    "difference_seed_high",
    "p_mcnemar",
    "p_randomization",
    "p_seeds",
    "p_holm",
)
CSV_COLUMNS = (
    "metric",
    "value",
    "stderr",
    "std",
    "low",
    "high",
    "seed_low",
    "seed_high",
    "n",
    "seeds",
    "without_neighbour",
    *COMPARED_COLUMNS,
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
    others = compared_names(cells)
    names = [f"{other}_{column}" for other in others for column in COMPARED_COLUMNS]
    writer = csv.DictWriter(stream, fieldnames=[*experiment.keys, *CSV_COLUMNS, *names], lineterminator="\n")
    writer.writeheader()
    lines = [*cells, *averages(experiment, cells)]
    told = corrected_scores(lines)
    for cell in lines:
        line = {**cell.coordinates, **_csv_numbers(cell), **_csv_published(published_of(experiment, cell))}
        line |= _comparison(told.get(place_of(cell)))
        for other in others:
            compared = _comparison(told.get(place_of(cell, other)))
            line |= {f"{other}_{column}": value for column, value in compared.items()}
        writer.writerow(safe_row(line))
    return stream.getvalue()


def _comparison(score: Score | None) -> dict[str, Any]:
    """The COMPARED_COLUMNS of a score."""
    if score is None:
        return {}
    intervals = (score.difference_interval, score.difference_seed_interval)
    limits = [limit for one in intervals for limit in one or (None, None)]
    tests = (score.p_mcnemar, score.p_randomization, score.p_seeds, score.p_holm)
    numbers = (score.difference, *limits, *tests)
    return dict(zip(COMPARED_COLUMNS, numbers, strict=True))


def _csv_numbers(cell: TableCell) -> dict[str, Any]:
    study = " ".join(folder.name for folder in cell.studies) or None
    numbers: dict[str, Any] = {"run_id": cell.run_id, "study": study, "problem": cell.problem}
    score = cell.score()
    if score is None:
        return numbers
    low, high = score.interval or (None, None)
    seed_low, seed_high = score.seed_interval or (None, None)
    return {
        **numbers,
        "run_id": score.run_id,
        "metric": score.metric,
        "value": score.value,
        "stderr": score.stderr,
        "std": score.std,
        "low": low,
        "high": high,
        "seed_low": seed_low,
        "seed_high": seed_high,
        "n": score.n,
        "seeds": score.seeds,
        "without_neighbour": without[0] if (without := cell.without_neighbour()) else None,
        "marks": " ".join(score.marks),
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
