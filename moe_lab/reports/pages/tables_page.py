"""`outputs/tables/index.html`: every table and figure of the folder.

Published and measured numbers are side by side.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moe_lab.reports.columns import Column, count, numbers, texts
from moe_lab.reports.pages.latex import latex_of
from moe_lab.reports.pages.page import picture_of, text_uri, write_page
from moe_lab.reports.papers.figure_kinds import FIGURES
from moe_lab.reports.papers.rows import Row, State
from moe_lab.reports.papers.table import PAPERS, Table
from moe_lab.reports.score_columns import difference_columns, signed_number, value_columns
from moe_lab.results.score import NO_SCORE
from moe_lab.results.score_table import explained_marks
from moe_lab.results.stored_files import damaged, typed, warn_once, whole_mapping

WITHOUT_NUMBER = (State.FAILED, State.NOT_RUN, State.NOT_AT_SCALE)


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


def write_tables_page(folder: Path) -> Path:
    """Write `index.html` from the tables' JSON files in the folder, and return its path.

    A file that is no table is left out, with a line on stderr. Raises ResultsError.
    """
    tables = [shown_table(table, folder) for table in _stored_tables(folder)]
    papers: dict[str, list[ShownTable]] = {}
    for table in sorted(tables, key=_order):
        papers.setdefault(table.paper, []).append(table)

    states_by_paper = {paper: _states(of_paper) for paper, of_paper in papers.items()}
    counts: Counter[State] = Counter()
    for states in states_by_paper.values():
        counts.update(states)
    measured = sum(n for state, n in counts.items() if state not in WITHOUT_NUMBER)
    names_papers = any(table.content.of_paper for table in tables)
    scales: dict[str, None] = {}
    for of_paper in papers.values():
        scales |= dict.fromkeys(table.content.scale for table in of_paper)

    return write_page(
        folder / "index.html",
        "tables.html.j2",
        papers=papers,
        summary=_summary("paper" if names_papers else "experiment", states_by_paper),
        measured=measured,
        cells=counts.total() - counts[State.NOT_AT_SCALE],
        agree=counts[State.AGREES],
        disagree=counts[State.DISAGREES],
        of_papers=names_papers,
        states={state: state.meaning for state in State if counts[state]},
        notes=explained_marks(_marks(tables)),
        scales=list(scales),
    )


def _stored_tables(folder: Path) -> list[Table]:
    """The tables of the JSON files in a folder. A message on stderr names each damaged file, which
    is left out."""
    tables = []
    for path in sorted(folder.glob("*.json")):
        try:
            table: Table = typed(Table, whole_mapping(path) or {})
            if table.stem != path.stem:  # the page reads the files with this stem
                raise ValueError(f"its stem is {table.stem}")
        except ValueError as error:
            warn_once(
                f"{damaged(path, error).problem}. Its command with mode=report writes it again."
            )
        else:
            tables.append(table)
    return tables


def _order(table: ShownTable) -> tuple[int, list[int | str]]:
    """A key that orders by paper, and `table2` before `table10`."""
    content = table.content
    paper = [*PAPERS, content.paper].index(content.paper)
    parts: list[int | str] = []
    for part in re.split(r"(\d+)", content.stem):
        parts.append(int(part) if part.isdigit() else part)
    return paper, parts


def _states(tables: Sequence[ShownTable]) -> list[State]:
    """The state of each cell of some tables."""
    states = []
    for table in tables:
        states += [row.state for row in table.content.page_rows]
    return states


def _summary(heading: str, states_by_paper: Mapping[str, Sequence[State]]) -> list[Column]:
    """The number of cells in each state, a row per paper or experiment."""
    columns = [texts(heading, list(states_by_paper))]
    for state in State:
        counts = [states.count(state) for states in states_by_paper.values()]
        if any(counts):
            columns.append(numbers(state, counts, count))
    return columns


def _marks(tables: Sequence[ShownTable]) -> list[str]:
    """The notes of all scores, such as PARTIAL."""
    marks: list[str] = []
    for table in tables:
        for row in table.content.rows:
            if row.score is not None:
                marks += row.score.marks
    return marks


def shown_table(table: Table, folder: Path) -> ShownTable:
    """The rows and columns of a table on the page, its downloads, and its figures in `folder`."""
    csv_file = folder / f"{table.stem}.csv"
    has_csv = csv_file.is_file()
    rows = [row for row in table.page_rows if not _does_not_apply(row)]
    columns = _stored_columns(csv_file) if table.of_settings else cell_columns(table, rows)
    latex = None
    if rows or has_csv:
        latex = text_uri(latex_of(columns, table.title), "x-tex")

    pictures = []
    for kind in FIGURES:
        picture = folder / f"{table.stem}-{kind}.svg"
        if picture.is_file():
            pictures.append(picture_of(picture.read_bytes()))

    paper = PAPERS.get(table.paper, table.paper)
    return ShownTable(
        content=table,
        paper=paper,
        columns=columns,
        data=[_attributes(row, paper) for row in rows],
        pictures=pictures,
        csv=csv_file.name if has_csv else None,
        latex=latex,
    )


def _does_not_apply(row: Row) -> bool:
    """Whether a design has no such number of a training, such as the leak of token choice."""
    return row.of_training and row.score is not None and row.score.value is None


def _attributes(row: Row, paper: str) -> dict[str, str]:
    """The attributes of a row of the HTML table, by which the page's script filters."""
    score = row.score or NO_SCORE
    return {
        "data-row": "",
        "data-paper": paper,
        "data-state": str(row.state),
        "data-run": score.run_id,
        "data-metric": score.metric,
    }


def _stored_columns(csv_file: Path) -> list[Column]:
    """The columns of a table of settings, as its CSV file has them; none without the file."""
    from pandas import read_csv

    if not csv_file.is_file():
        return []
    frame = read_csv(csv_file, dtype=str, keep_default_na=False)
    return [texts(str(name).replace("_", " "), list(frame[name])) for name in frame]


def cell_columns(table: Table, rows: Sequence[Row]) -> list[Column]:
    """The columns of the rows: coordinates, score, differences, published number, state, and notes.

    A row without a score, a difference or a published number has empty cells there.
    """
    scores = [row.score or NO_SCORE for row in rows]
    states = [_state_text(row) for row in rows]
    notes = [" ".join(score.marks) for score in scores]
    columns = _coordinate_columns(table, rows)
    for column in value_columns(scores):
        if column.heading == "n":  # n is RoE's number of samples
            column = replace(column, heading="documents")
        columns.append(column)

    columns += difference_columns(scores)
    for other in table.compared:
        columns += _columns_against(other, rows)
    columns += _published_columns(rows)
    columns.append(texts("state", states))
    columns.append(texts("notes", notes))
    return columns


def _columns_against(other: str, rows: Sequence[Row]) -> list[Column]:
    """The differences to another run than the base model's, whose name is in the headings."""
    scores = [row.compared.get(other, NO_SCORE) for row in rows]
    other_name = other.replace("_", " ")
    columns = []
    for column in difference_columns(scores):
        columns.append(replace(column, heading=f"{column.heading}, {other_name}"))
    return columns


def _published_columns(rows: Sequence[Row]) -> list[Column]:
    """The published number, its place in the paper, and how far the measured one is from it."""
    values = [row.published.fraction if row.published else None for row in rows]
    places = [row.published.where if row.published else "" for row in rows]
    differences = [row.minus_published for row in rows]
    return [
        numbers("published", values, "{:.4g}".format),
        texts("place", places),
        numbers("value - published", differences, signed_number),
    ]


def _coordinate_columns(table: Table, rows: Sequence[Row]) -> list[Column]:
    """The axes on which any row has a coordinate.

    Those of the table come first, then others of published numbers.
    """
    axes = dict.fromkeys(table.axes)
    for row in rows:
        axes |= dict.fromkeys(row.coordinates)

    columns = []
    for axis in axes:
        values = [row.coordinates.get(axis, "-") for row in rows]
        if any(value != "-" for value in values):
            columns.append(texts(axis.rpartition(".")[2].replace("_", " "), values))
    return columns


def _state_text(row: Row) -> str:
    """`<state>: <reason>`; the state alone where it has no reason."""
    if not row.reason:
        return str(row.state)
    return f"{row.state}: {row.reason}"
