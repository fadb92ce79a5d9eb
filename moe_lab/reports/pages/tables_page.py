"""`outputs/tables/index.html`: every table and figure of the folder, published and measured numbers side by side."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moe_lab.reports.pages.page import (
    UNEXPECTED,
    latex_of_rows,
    left_out,
    number,
    picture_of,
    text_uri,
    write_page,
)
from moe_lab.reports.pages.plots import by_outcome, forest, verdicts
from moe_lab.reports.papers.experiment import FIGURES
from moe_lab.reports.papers.metrics import EXPERT
from moe_lab.reports.papers.ranking import EXPLAINED
from moe_lab.reports.papers.table import PAPERS, Row, State, Table
from moe_lab.results.score_table import ScoreLine, explained_marks
from moe_lab.results.scores import Score
from moe_lab.results.stored_files import typed, warn_once, whole_mapping

OF_PAPERS = (*(State.AGREES, State.DISAGREES, State.NOT_COMPARABLE, State.NOT_PUBLISHED), State.NOT_AT_SCALE)
"""States of cells in tables of a paper."""
EMPTY = (State.FAILED, State.NOT_RUN)
SUMMARY: dict[str, list[State]] = {
    "cells": [state for state in State if state != State.NOT_AT_SCALE],
    "measured": [state for state in State if state not in (*EMPTY, State.NOT_AT_SCALE)],
    "agree": [State.AGREES],
    "disagree": [State.DISAGREES],
    "cannot be compared": [State.NOT_COMPARABLE, State.NOT_PUBLISHED],
    **{str(state): [state] for state in EMPTY},
    "published, not at this scale": [State.NOT_AT_SCALE],
}
"""The columns of the summary by paper, and the states that each of them counts."""


def write_tables_page(folder: Path) -> Path:
    """Write `index.html` from the tables' JSON files in the folder, and return its path. Raises ResultsError.

    A file that is no table is left out, with a line on stderr.
    """
    tables = []
    for path in sorted(folder.glob("*.json")):
        try:
            table = typed(Table, whole_mapping(path) or {})
            if table.stem != path.stem:  # the page reads the files with this stem
                raise ValueError(f"its stem is {table.stem}")
            tables.append(shown_table(table, folder))
        except UNEXPECTED as error:
            warn_once(f"{left_out(path, error)}. The table's command with mode=report writes it again.")
    papers: dict[str, list[ShownTable]] = {}
    for shown in sorted(tables, key=_order):
        papers.setdefault(shown.paper, []).append(shown)
    compared = compared_scores([one.content for one in tables])
    found = verdicts(compared)
    kinds = {one.content.of_paper for one in tables}
    states = [state for state in State if (state in OF_PAPERS) in kinds or state in EMPTY]
    return write_page(
        folder / "index.html",
        "tables.html.j2",
        papers=papers,
        summary={paper: _summary(own) for paper, own in papers.items()},
        total=_summary(tables),
        columns=[name for name, counted in SUMMARY.items() if {*counted} & {*states}],
        of_papers=True in kinds,
        states={state: state.meaning for state in states},
        verdicts=by_outcome(found),
        forest=forest(replace(line, label=line.name) for line in compared),
        count=len(found),
        marks=explained_marks(
            mark for one in tables for row in one.content.rows if row.score for mark in row.score.marks
        ),
        explained=EXPLAINED,
        scales=list(dict.fromkeys(one.content.scale for own in papers.values() for one in own)),
    )


def compared_scores(tables: Sequence[Table]) -> list[ScoreLine]:
    """The scores of all tables. A run in several tables counts once.

    Averages are left out, and expert metrics, for which neither more nor less is better.
    """
    found: dict[tuple[str, str, str], ScoreLine] = {}
    for row in (row for table in tables for row in table.rows):
        score = row.score
        if score is not None and not row.average and not score.metric.startswith(EXPERT):
            # dotted keys with their names
            rest = ", ".join(
                f"{key.rpartition('.')[2]}={value}" if "." in key else value
                for key, value in row.coordinates.items()
                if value not in ("-", score.method, score.task)
            )
            place = (score.run_id, score.task, score.metric)
            found.setdefault(place, ScoreLine(score, rest))
    return list(found.values())


@dataclass(frozen=True)
class ShownTable:
    """A table as the template shows it."""

    content: Table
    rows: list[Row]
    axes: list[str]
    """The axes on which any row has a coordinate. Published numbers may have more of them than the table."""
    constant: list[str]
    """The axes with the same coordinate in every row. They come last."""
    columns: set[str]
    """The columns that have a number."""
    listed: list[dict[str, str]]
    """The lines of a table of settings."""
    pictures: list[str]
    """Data URIs."""
    csv: str | None
    latex: str | None

    @property
    def paper(self) -> str:
        return PAPERS.get(self.content.paper, self.content.paper)


def _summary(tables: Sequence[ShownTable]) -> dict[str, int]:
    """The number of cells in each column of SUMMARY."""
    counts = Counter(row.state for table in tables for row in table.rows)
    return {name: sum(counts[state] for state in states) for name, states in SUMMARY.items()}


def shown_table(table: Table, folder: Path) -> ShownTable:
    """The rows and columns of a table on the page, with its downloads and the figures in `folder`."""
    file = folder / f"{table.stem}.csv"
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    rows = [] if table.of_settings else [*table.rows, *table.stated, *table.unmatched]
    # a design has no number of a training that does not apply to it, such as the leak of token choice
    rows = [row for row in rows if not (row.of_training and row.score and row.score.value is None)]
    named = dict.fromkeys([*table.axes, *(axis for row in rows for axis in row.coordinates)])
    given = {axis: {row.coordinates.get(axis, "-") for row in rows} for axis in named}
    axes = [axis for axis, values in given.items() if values - {"-"}]
    scores = [row.score for row in rows if row.score]
    columns = {
        name for name in ("n", "difference", "flips") for one in scores if getattr(one, name) is not None
    }
    columns |= {name for name in ("published", "off") for row in rows if getattr(row, name) is not None}
    listed = list(csv.DictReader(text.splitlines())) if table.of_settings and text else []
    lines = listed or [_latex_line(row, row.score, axes) for row in rows if row.score is not None]
    pictures = [folder / f"{table.stem}-{kind}.png" for kind in FIGURES]
    return ShownTable(
        table,
        rows,
        axes,
        constant=[axis for axis in axes if len(rows) > 1 and len(given[axis]) == 1],
        columns=columns,
        listed=listed,
        pictures=[picture_of(picture) for picture in pictures if picture.is_file()],
        csv=text_uri(text, "csv") if text else None,
        latex=text_uri(latex_of_rows(lines, table.title), "x-tex") if lines else None,
    )


def _latex_line(row: Row, score: Score, axes: Sequence[str]) -> dict[str, str]:
    """A line of the LaTeX table of a measured row."""
    bounds = {"": score.interval, "seeds ": score.seed_interval}
    intervals = [f"{name}{number(one[0])} to {number(one[1])}" for name, one in bounds.items() if one]
    return {
        **{axis.rpartition(".")[2]: row.coordinates.get(axis, "-") for axis in axes},
        "measured": number(score.value),
        "95% interval": ", ".join(intervals),
        "documents": "" if score.n is None else str(score.n),
        "difference to base": number(score.difference, True),
        "published": "" if row.published is None else f"{row.published.fraction:.4g}",
    }


def _order(shown: ShownTable) -> tuple[int, list[int | str]]:
    """A key that orders by paper, and `table2` before `table10`."""
    paper = [*PAPERS, shown.content.paper].index(shown.content.paper)
    return paper, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", shown.content.stem)]
