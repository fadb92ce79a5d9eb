"""Numbers in a paper's text about a figure, next to the same quantity of the figure's data here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.reports.papers.experiment import Experiment
from moe_lab.reports.papers.files import file_stem
from moe_lab.reports.papers.published import Published
from moe_lab.reports.papers.rows import Row, with_state
from moe_lab.results.score import NO_SCORE

if TYPE_CHECKING:
    from pandas import DataFrame


def stated_numbers(experiment: Experiment, scale: str, folder: Path) -> list[Row]:
    """The stated numbers (`Published.data`) with their values in the figure in `folder`.

    There is a row for each model and task of the figure. Without the figure's data a number has the
    coordinates of the paper.
    """
    stated = [published for published in experiment.paper if published.data is not None]
    file = folder / f"{file_stem(experiment, scale)}-{experiment.figure}.csv"
    if stated and file.is_file():
        rows = _measured_rows(stated, file)
    else:
        rows = [_unmeasured_row(published) for published in stated]
    return [with_state(row, scale) for row in rows]


def _unmeasured_row(published: Published) -> Row:
    """The row of a stated number without the figure's data."""
    return Row(coordinates=published.cell, metric=published.cell["quantity"], published=published)


def _measured_rows(stated: list[Published], file: Path) -> list[Row]:
    """A row for each stated number, model and task of the figure's data."""
    from pandas import read_csv

    groups = list(read_csv(file).groupby(["model", "task"], sort=False))
    rows = []
    for published in stated:
        for (model, task), data in groups:
            rows.append(_measured_row(published, {"model": model, "task": task}, data))
    return rows


def _measured_row(published: Published, place: Mapping[str, str], data: DataFrame) -> Row:
    """A stated number next to its value in the figure's data of one model and task."""
    quantity = published.cell["quantity"]
    row = Row(coordinates={**place, "quantity": quantity}, metric=quantity, published=published)
    condition, _, expression = str(published.data).partition("=>")
    values = data.query(condition).eval(expression).dropna()
    if not len(values):
        return replace(row, reason="the figure's data lack it")
    return replace(row, score=replace(NO_SCORE, value=float(values.iloc[0])))
