"""Tables on the terminal, and numbers as their text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from moe_lab.config.terminal import one_line

# Numbers with units; a number that does not exist is empty


def seconds(value: float | None) -> str:
    """Seconds with one decimal."""
    return "" if value is None else f"{value:,.1f} s"


def count(value: float | None) -> str:
    """A whole number with separators."""
    return "" if value is None else f"{value:,.0f}"


def mebibytes(value: float | None) -> str:
    """Bytes as MiB."""
    return "" if value is None else f"{value / 2**20:,.0f} MiB"


def fixed(value: float | None) -> str:
    """A number with two decimals."""
    return "" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    """A fraction as per cent with one decimal."""
    return "" if value is None else f"{100 * value:.1f}%"


# A table. What is the same in all rows is in its title. One that is wider than the terminal is printed in parts

WITHOUT_TERMINAL = 400
"""Characters of a line of a table that is piped or stored."""
GAP = 2
"""Blanks between two columns."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A heading and one cell per row."""

    heading: str
    cells: Sequence[str]
    name: bool = False
    """Whether it names the rows. A name that is the same in all rows is shown in the title."""
    shared: bool = False
    """Whether to show a number in the title, too, if it is the same in all rows."""

    def __post_init__(self) -> None:
        # escaped before the widths of columns are computed from their cells
        object.__setattr__(self, "cells", [one_line(cell) for cell in self.cells])

    @property
    def width(self) -> int:
        return max(map(cell_len, [self.heading, *self.cells])) + GAP


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """A title, and the columns below it."""

    title: str
    columns: list[Column]

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]


def names(cells: Mapping[str, Sequence[str]]) -> list[Column]:
    """Columns that name the rows, with the cells of each heading."""
    return [Column(heading=heading, cells=each, name=True) for heading, each in cells.items()]


def numbers(cells: Mapping[str, Sequence[str]], shared: Sequence[str] = ()) -> list[Column]:
    """Columns of numbers, with the cells of each heading; those of `shared` are in the title if all rows share them."""
    return [Column(heading=name, cells=each, shared=name in shared) for name, each in cells.items()]


Cells = dict[str, Callable[[Any], str]]
"""The cell of a row by heading."""


def cells_of(rows: Sequence[Any], columns: Cells) -> dict[str, Sequence[str]]:
    """The cells of each heading, for `names` and `numbers`."""
    return {heading: [cell(row) for row in rows] for heading, cell in columns.items()}


def text_table(title: str, columns: Sequence[Column], marks: Sequence[str] = ()) -> TextTable:
    """The table without empty columns. Shared columns and the notes of all rows are in the title."""
    filled = [column for column in columns if any(cell not in ("", "-") for cell in column.cells)]
    shared = [one for one in filled if (one.name or one.shared) and len(set(one.cells)) == 1]
    texts = [f"{column.heading}={column.cells[0]}" for column in shared]
    return TextTable(
        title=": ".join(filter(None, [title, " ".join([*texts, *marks])])),
        columns=[column for column in filled if column not in shared],
    )


def print_text_table(table: TextTable, explained: Mapping[str, str] | None = None) -> None:
    """Print the title, the table, and a line for each explained heading."""
    console = _console(WITHOUT_TERMINAL)
    console.print(table.title, end="\n\n")
    for part in parts(table.columns, console.width):
        grid = Table(box=SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
        for column in part:
            justify: Literal["left", "right"] = "left" if column.name else "right"
            whole = not column.name and column.width <= console.width
            grid.add_column(column.heading, justify=justify, no_wrap=whole, overflow="fold")
        shown = [[cell or ("" if column.name else "-") for cell in column.cells] for column in part]
        for row in zip(*shown, strict=True):
            grid.add_row(*row)
        console.print(grid)
        print()
    lines = [f"{heading}: {text}" for heading, text in (explained or {}).items() if heading in table.headings]
    for line in lines:
        console.print(line)
    if lines:
        print()


def parts(columns: Sequence[Column], width: int) -> Iterator[list[Column]]:
    """The columns, or groups of them that fit: each has the columns that name the rows, and some of the others.

    The names take at most half of the width: longer ones are folded. Numbers are never cut.
    """
    named, others = [[one for one in columns if one.name is wanted] for wanted in (True, False)]
    of_names = sum(column.width for column in named)
    room = width - of_names
    if sum(column.width for column in others) > room:
        room = width - min(of_names, width // 2)
    group: list[Column] = []
    for column in others:
        if group and sum(one.width for one in (*group, column)) > room:
            yield [*named, *group]
            group = []
        group.append(column)
    if group or named:
        yield [*named, *group]


def print_note(text: str) -> None:
    """Print a line below a table; on a terminal it is folded between words."""
    _console(10**6).print(text)


def _console(without_terminal: int) -> Console:
    """Prints in the width of the terminal, or in another one without a terminal."""
    # Brackets and colons in cells are printed as they are: overrides may hold them.
    # No colours: stdout shows escape sequences instead of sending them.
    width = None if sys.stdout.isatty() else without_terminal
    return Console(
        file=sys.stdout, width=width, markup=False, emoji=False, color_system=None, highlight=False
    )
