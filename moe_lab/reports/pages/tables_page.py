"""`outputs/tables/index.html`: every table and figure of the folder, published and measured numbers side by side."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moe_lab.reports.figures.differences import difference_of
from moe_lab.reports.pages.page import (
    UNEXPECTED,
    latex_of_rows,
    left_out,
    picture_of,
    rendered,
    text_uri,
)
from moe_lab.reports.pages.plots import forest
from moe_lab.reports.pages.record import (
    AGREES,
    DISAGREES,
    FAILED,
    NOT_AT_SCALE,
    NOT_COMPARABLE,
    NOT_PUBLISHED,
    NOT_RUN,
    PAPERS,
    STATES,
    CellRecord,
    Row,
    TableRecord,
    axes_of,
    columns_of,
    constant_axes,
    latex_row,
    read_records,
    rows_of,
)
from moe_lab.reports.pages.verdict import Compared, by_outcome, has_verdict, outcome, verdicts
from moe_lab.reports.papers.experiment import FIGURES
from moe_lab.reports.papers.metrics import EXPERT
from moe_lab.reports.papers.ranking import EXPLAINED
from moe_lab.results.atomic import write_file
from moe_lab.results.score_table import explained_marks
from moe_lab.results.scores import Score
from moe_lab.results.stored_files import warn_once

OF_PAPERS = (AGREES, DISAGREES, NOT_COMPARABLE, NOT_PUBLISHED, NOT_AT_SCALE)
"""States of cells in tables of a paper."""
EMPTY = (FAILED, NOT_RUN)
SUMMARY = {
    "cells": [state for state in STATES if state != NOT_AT_SCALE],
    "measured": [state for state in STATES if state not in (*EMPTY, NOT_AT_SCALE)],
    "agree": [AGREES],
    "disagree": [DISAGREES],
    "cannot be compared": [NOT_COMPARABLE, NOT_PUBLISHED],
    **{state: [state] for state in EMPTY},
    "published, not at this scale": [NOT_AT_SCALE],
}
"""The columns of the summary by paper, and the states that each of them counts."""


def write_tables_page(folder: Path) -> Path:
    """Write `index.html` from the records in the folder, and return its path. Raises ResultsError.

    A record that cannot be shown is left out, with a line on stderr.
    """
    records = read_records(folder)
    try:
        text = _text_of(records, folder)
    except UNEXPECTED:
        text = _text_of([record for record in records if _can_be_shown(record, folder)], folder)
    return write_file(folder / "index.html", text)


def _can_be_shown(record: TableRecord, folder: Path) -> bool:
    try:
        _text_of([record], folder)
    except UNEXPECTED as error:
        warn_once(f"{left_out(folder / record.stem, error)}. It is left out.")
        return False
    return True


def _text_of(records: Sequence[TableRecord], folder: Path) -> str:
    records = sorted(records, key=_order)
    papers: dict[str, list[Table]] = {}
    for table in (_table(record, folder) for record in records):
        papers.setdefault(table.paper, []).append(table)
    compared = compared_scores(records)
    found = verdicts(compared)
    drawn = [one for one in compared if has_verdict(one.score) and one.score.tested_interval is not None]
    rows = [difference_of(one.score, one.name, one.lower_is_better) for one in drawn]
    scores = [cell.score for record in records for cell in record.cells]
    return rendered(
        "tables.html.j2",
        papers=papers,
        summary={paper: summary(tables) for paper, tables in papers.items()},
        total=summary([table for tables in papers.values() for table in tables]),
        columns=[name for name, states in SUMMARY.items() if {*states} & {*_states(records)}],
        of_papers=any(record.of_paper for record in records),
        states={state: STATES[state] for state in _states(records)},
        verdicts=by_outcome(found),
        forest=forest(rows, [outcome(one) for one in drawn]),
        count=len(found),
        marks=explained_marks(mark for score in scores if score for mark in score.marks),
        explained=EXPLAINED,
        scales=list(dict.fromkeys(record.scale for record in records)),
    )


def _states(records: Sequence[TableRecord]) -> list[str]:
    """The states that the records' cells may have."""
    kinds = {record.of_paper for record in records}
    return [state for state in STATES if (state in OF_PAPERS) in kinds or state in EMPTY]


def compared_scores(records: Sequence[TableRecord]) -> list[Compared]:
    """The scores of all tables. A run in several tables counts once.

    Averages are left out, and expert metrics, for which neither more nor less is better.
    """
    found: dict[tuple[str, str, str], Compared] = {}
    for cell in (cell for record in records for cell in record.cells):
        score = cell.score
        if score is not None and not cell.average and not score.metric.startswith(EXPERT):
            place = (score.run_id, score.task, score.metric)
            found.setdefault(place, Compared(_name(cell, score), score, cell.lower_is_better))
    return list(found.values())


@dataclass(frozen=True)
class Table:
    """A table as the template shows it."""

    record: TableRecord
    axes: list[str]
    constant: list[str]
    """The axes with the same coordinate in every line."""
    rows: list[Row]
    columns: set[str]
    listed: list[dict[str, str]]
    """The lines of a table of settings."""
    pictures: list[str]
    """Data URIs."""
    csv: str | None
    latex: str | None

    @property
    def paper(self) -> str:
        return PAPERS.get(self.record.paper, self.record.paper)

    @property
    def measured(self) -> int:
        return sum(row.score is not None for row in self.rows)

    @property
    def shows(self) -> list[str]:
        return list(dict.fromkeys(cell.shows for cell in self.record.cells if cell.shows))


def summary(tables: Sequence[Table]) -> dict[str, int]:
    """The number of cells in each column of SUMMARY."""
    counts = Counter(row.state for table in tables for row in table.rows)
    return {name: sum(counts[state] for state in states) for name, states in SUMMARY.items()}


def _table(record: TableRecord, folder: Path) -> Table:
    stem = folder / record.stem
    text = _text(stem.with_name(f"{stem.name}.csv"))
    rows = rows_of(record)
    axes = axes_of(record, rows)
    listed = list(csv.DictReader(text.splitlines())) if record.of_settings and text else []
    shown = listed or [latex_row(row, axes) for row in rows if row.score is not None]
    pictures = [stem.with_name(f"{stem.name}-{kind}.png") for kind in FIGURES]
    return Table(
        record,
        axes,
        constant_axes(axes, rows),
        rows,
        columns_of(rows),
        listed,
        pictures=[picture_of(picture) for picture in pictures if picture.is_file()],
        csv=text_uri(text, "csv") if text else None,
        latex=text_uri(latex_of_rows(shown, record.title), "x-tex") if shown else None,
    )


def _name(cell: CellRecord, score: Score) -> str:
    """Method, task, and the cell's other coordinates, dotted keys with their names."""
    rest = [
        f"{key.rpartition('.')[2]}={value}" if "." in key else value
        for key, value in cell.coordinates.items()
        if value not in ("-", score.method, score.task)
    ]
    return f"{score.method} on {score.task}" + (f" ({', '.join(rest)})" if rest else "")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _order(record: TableRecord) -> tuple[int, list[int | str]]:
    """A key that orders by paper, and `table2` before `table10`."""
    paper = [*PAPERS, record.paper].index(record.paper)
    return paper, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", record.stem)]
