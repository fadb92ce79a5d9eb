"""`outputs/tables/index.html`: every table and figure of the folder, published and measured numbers side by side."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from moe_lab.reports.columns import Column, count, numbers, texts
from moe_lab.reports.pages.page import latex_of, picture_of, text_uri, write_page
from moe_lab.reports.papers.figure_kinds import FIGURES
from moe_lab.reports.papers.rows import Row, State
from moe_lab.reports.papers.table import PAPERS, Table
from moe_lab.reports.score_columns import difference_columns, value_columns
from moe_lab.results.measured import number
from moe_lab.results.score import NO_SCORE
from moe_lab.results.score_table import explained_marks
from moe_lab.results.stored_files import damaged, typed, warn_once, whole_mapping

WITHOUT_NUMBER = (State.FAILED, State.NOT_RUN, State.NOT_AT_SCALE)


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
        except ValueError as error:
            warn_once(
                f"{damaged(path, error).problem}. Its command with mode=report writes it again."
            )
        else:
            tables.append(shown_table(table, folder))
    papers: dict[str, list[ShownTable]] = {}
    for shown in sorted(tables, key=_order):
        papers.setdefault(shown.paper, []).append(shown)
    cells = {
        paper: [row.state for one in own for row in one.content.every]
        for paper, own in papers.items()
    }
    counts = Counter(chain.from_iterable(cells.values()))
    of_papers = any(one.content.of_paper for one in tables)
    return write_page(
        folder / "index.html",
        "tables.html.j2",
        papers=papers,
        summary=[
            texts("paper" if of_papers else "experiment", list(papers)),
            *(
                numbers(state, [own.count(state) for own in cells.values()], count)
                for state in State
                if counts[state]
            ),
        ],
        measured=sum(n for state, n in counts.items() if state not in WITHOUT_NUMBER),
        cells=counts.total() - counts[State.NOT_AT_SCALE],
        agree=counts[State.AGREES],
        disagree=counts[State.DISAGREES],
        of_papers=of_papers,
        states={state: state.meaning for state in State if counts[state]},
        notes=explained_marks(
            mark
            for one in tables
            for row in one.content.rows
            if row.score
            for mark in row.score.marks
        ),
        scales=list(dict.fromkeys(one.content.scale for own in papers.values() for one in own)),
    )


@dataclass(frozen=True)
class ShownTable:
    """A table as the template shows it."""

    content: Table
    paper: str
    columns: list[Column]
    data: list[dict[str, str]]
    """The attributes of each row."""
    pictures: list[str]
    """Data URIs."""
    csv: str | None
    """The file next to the page."""
    latex: str | None
    """A data URI."""


def shown_table(table: Table, folder: Path) -> ShownTable:
    """The rows and columns of a table on the page, with its downloads and the figures in `folder`."""
    from pandas import DataFrame, read_csv

    file = folder / f"{table.stem}.csv"
    # a design has no number of a training that does not apply to it, such as the leak of token choice
    rows = [
        row
        for row in table.every
        if not (row.of_training and row.score and row.score.value is None)
    ]
    columns = cell_columns(table, rows)
    if table.of_settings:
        frame = read_csv(file, dtype=str, keep_default_na=False) if file.is_file() else DataFrame()
        columns = [texts(str(name).replace("_", " "), list(frame[name])) for name in frame]
    pictures = [folder / f"{table.stem}-{kind}.svg" for kind in FIGURES]
    paper = PAPERS.get(table.paper, table.paper)
    return ShownTable(
        table,
        paper,
        columns,
        data=[
            {"data-row": "", "data-paper": paper, "data-state": str(row.state)}
            | {"data-run": score.run_id, "data-metric": score.metric}
            for row, score in ((row, row.score or NO_SCORE) for row in rows)
        ],
        pictures=[picture_of(picture.read_bytes()) for picture in pictures if picture.is_file()],
        csv=file.name if file.is_file() else None,
        latex=text_uri(latex_of(columns, table.title), "x-tex") if rows or file.is_file() else None,
    )


def cell_columns(table: Table, rows: Sequence[Row]) -> list[Column]:
    """Coordinates, score, differences to base and to other runs, the published number, and the state."""
    scores = [row.score or NO_SCORE for row in rows]
    named = dict.fromkeys([*table.axes, *(axis for row in rows for axis in row.coordinates)])
    given = {axis: [row.coordinates.get(axis, "-") for row in rows] for axis in named}
    published = [row.published and row.published.fraction for row in rows]
    return [
        *(
            texts(axis.rpartition(".")[2].replace("_", " "), cells)
            for axis, cells in given.items()
            if {*cells} - {"-"}
        ),
        *(
            replace(one, heading="documents")
            if one.heading == "n"
            else one  # n is RoE's number of samples
            for one in value_columns(scores)
        ),
        *difference_columns(scores),
        *(
            replace(column, heading=f"{column.heading}, {other.replace('_', ' ')}")
            for other in table.compared
            for column in difference_columns([row.compared.get(other, NO_SCORE) for row in rows])
        ),
        numbers("published", published, "{:.4g}".format),
        texts("place", [row.published.where if row.published else "" for row in rows]),
        numbers("value - published", [row.off for row in rows], partial(number, sign=True)),
        texts("state", [": ".join(filter(None, [str(row.state), row.reason])) for row in rows]),
        texts("notes", [" ".join(score.marks) for score in scores]),
    ]


def _order(shown: ShownTable) -> tuple[int, list[int | str]]:
    """A key that orders by paper, and `table2` before `table10`."""
    paper = [*PAPERS, shown.content.paper].index(shown.content.paper)
    return paper, [
        int(part) if part.isdigit() else part for part in re.split(r"(\d+)", shown.content.stem)
    ]
