"""A table as columns of texts, on the terminal and on pages, and numbers as their text."""

import io
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from shutil import get_terminal_size
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from moe_lab.config.terminal import one_line, shown

seconds = "{:,.1f} s".format
count = "{:,.0f}".format
"""A whole number with separators."""
fixed = "{:.2f}".format
"""A number with two decimals."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A heading and one cell per row. A column whose cells are all empty is not shown."""

    heading: str
    cells: Sequence[str]
    values: Sequence[Any] | None = None
    """The numbers that cells show, by which a page sorts; None for texts."""
    name: bool = False
    """Whether it says what the rows are. A name that all rows share is in the title of a table."""
    spare: int = 0
    """On a narrow terminal columns are left out, those with the largest number first; 0 is always
    shown."""

    @property
    def shown(self) -> bool:
        """Whether any cell has a text."""
        return any(self.cells)

    @property
    def width(self) -> int:
        """Characters, with the gap to the next column."""
        texts = [self.heading, *(one_line(cell) for cell in self.cells)]
        return max(cell_len(text) for text in texts) + GAP

    @property
    def least_width(self) -> int:
        """The width with its texts folded."""
        if self.is_number:
            return self.width
        return min(self.width, LEAST_TEXT + GAP)

    @property
    def is_number(self) -> bool:
        """Whether it shows numbers, which are neither folded nor cut."""
        return self.values is not None


def names(**columns: Iterable[str]) -> list[Column]:
    """Columns that say what the rows are, by heading."""
    named = []
    for heading, cells in columns.items():
        named.append(Column(heading=heading, cells=list(cells), name=True))
    return named


def numbers(
    heading: str,
    values: Sequence[Any],
    text: Callable[[Any], str],
    spare: int = 0,
    name: bool = False,
) -> Column:
    """A column of numbers, each as its text; a missing number is None and empty."""
    cells = ["" if value is None else text(value) for value in values]
    return Column(heading=heading, cells=cells, values=values, spare=spare, name=name)


def texts(heading: str, cells: Sequence[str], spare: int = 0) -> Column:
    """A column of texts that do not name the rows."""
    return Column(heading=heading, cells=cells, spare=spare)


class SplitColumns(NamedTuple):
    """The columns of a table, those that are the same in all rows apart."""

    shared: list[str]
    """`<heading>=<cell>` of each name that all rows share. It belongs in the title."""
    kept: list[Column]
    """The other columns."""


def split_title(columns: Sequence[Column]) -> SplitColumns:
    """The columns, split for a table with a title. Columns without any text are in neither part."""
    shared = []
    kept = []
    for column in columns:
        if not column.shown:
            continue
        if column.name and len(set(column.cells)) == 1:
            shared.append(f"{column.heading}={column.cells[0]}")
        else:
            kept.append(column)
    return SplitColumns(shared, kept)


WITHOUT_TERMINAL = 400
"""Characters of a line of a table that is piped or stored, unless COLUMNS says another number."""
GAP = 2
"""Blanks between two columns."""
LEAST_TEXT = 12
"""Characters to which a column of texts may be folded. Numbers are neither folded nor cut."""


def print_table(title: str, columns: Sequence[Column]) -> None:
    """Print a table in the width of the terminal."""
    print(table_text(title, columns, terminal_width()))


def terminal_width() -> int:
    """Characters of a line: COLUMNS if it is a number above 0, else the width of the terminal.

    WITHOUT_TERMINAL if stdout is no terminal.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    if not sys.stdout.isatty():
        return WITHOUT_TERMINAL
    return get_terminal_size().columns


def table_text(title: str, columns: Sequence[Column], width: int = WITHOUT_TERMINAL) -> str:
    """A title, and the table below it.

    Columns that do not fit are left out (`Column.spare`), and names are folded.

    If the numbers alone are too wide, the table becomes a list: a line `<heading>: <cell>` for each
    cell with a text, with an empty line between rows.

    Args:
        width: characters of a line.
    """
    shared, all_columns = split_title(columns)
    heading_parts = [title, " ".join(shared)]
    heading = one_line(": ".join(part for part in heading_parts if part))
    kept, left_out = _fitting(all_columns, width)
    if sum(column.least_width for column in kept) > width:
        return _list_text(heading, all_columns)

    grid = Table(box=SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for column in kept:
        grid.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            no_wrap=column.is_number,
            overflow="fold",
        )
    for row in zip(*(column.cells for column in kept), strict=True):
        grid.add_row(*map(one_line, row))

    text = io.StringIO()
    # No markup and no colours: overrides may have brackets, and stdout shows escape sequences
    # instead of sending them.
    console = Console(
        file=text,
        width=width,
        markup=False,
        emoji=False,
        color_system=None,
        highlight=False,
    )
    console.print(heading, end="\n\n")
    console.print(grid)
    if left_out:
        console.print(f"Columns that do not fit: {', '.join(left_out)}.")
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


class _FittingColumns(NamedTuple):
    """The columns of a table on a narrow terminal."""

    kept: list[Column]
    left_out: list[str]
    """The headings of the others, in the order in which they were left out."""


def _fitting(columns: Sequence[Column], width: int) -> _FittingColumns:
    """The columns that fit into a line of `width` characters.

    Columns that are always shown (`Column.spare`) stay, even if they do not fit.
    """
    kept = list(columns)
    left_out = []
    while sum(column.width for column in kept) > width:
        least_needed = max(kept, key=lambda column: column.spare)
        if not least_needed.spare:
            break
        left_out.append(least_needed.heading)
        kept.remove(least_needed)
    return _FittingColumns(kept, left_out)


def _list_text(heading: str, columns: Sequence[Column]) -> str:
    """A heading, and each row as lines below it."""
    lines = [heading, ""]
    for cells in zip(*(column.cells for column in columns), strict=True):
        for column, cell in zip(columns, cells, strict=True):
            if cell:
                lines.append(f"{column.heading}: {one_line(cell)}")
        lines.append("")
    return "\n".join(lines)


class TableWithNotes(NamedTuple):
    """A table and the lines below it."""

    columns: list[Column]
    lines: list[str]


class Shown(ABC):
    """An object that a notebook and a terminal show as a table with lines below it."""

    @abstractmethod
    def _table_with_notes(self) -> TableWithNotes:
        """The columns of the table, and the lines below it."""

    def __repr__(self) -> str:
        columns, lines = self._table_with_notes()
        return shown("\n".join([table_text("", columns).strip("\n"), *lines]).lstrip())

    def _repr_html_(self) -> str:
        """The table for a notebook, with the lines below it."""
        import pandas as pd

        columns, lines = self._table_with_notes()
        title, kept = split_title(columns)
        rows = list(zip(*(column.cells for column in kept), strict=True))
        table = pd.DataFrame(rows, columns=[column.heading for column in kept]).to_html(index=False)
        below = "".join(f"<p>{escape(line)}</p>" for line in lines)
        return f"<p>{escape(' '.join(title))}</p>{table}{below}"
