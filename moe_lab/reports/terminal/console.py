"""Tables on stdout: a table wider than the terminal is printed in parts, as in pandas."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table

from moe_lab.config.terminal import shown
from moe_lab.reports.terminal.stacks import WIDTH, wrapped

WIDTH_WITHOUT_TERMINAL = 400
BESIDE_A_CELL = 3
"""Two blanks and a line."""


def print_table(table: Table) -> None:
    """Print a table in the width of the terminal, or in 400 characters without one.

    Brackets and colons in cells are printed as they are: overrides may hold them.
    """
    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    console = Console(file=sys.stdout, width=width, markup=False, emoji=False, color_system=None)
    for part in fitting(table, console.width):
        console.print(part)


def print_note(text: str) -> None:
    """Print a line below a table; on a terminal it breaks at 80 columns."""
    print("\n".join(wrapped(text, WIDTH, name=False)) if sys.stdout.isatty() else text)


def fitting(table: Table, width: int) -> Iterator[Table]:
    """The table, or parts of it that fit: each part has the columns that name the rows, and some of the others.

    The columns before the first column of numbers name the rows. They take at most half of the width: longer names
    are folded. Numbers are never cut.
    """
    names = list(takewhile(lambda column: column.justify != "right", table.columns))
    if _width(table.columns) <= width or len(names) == len(table.columns):
        yield _part(table, names, table.columns[len(names) :])
        return
    room = width - min(_width(names), width // 2)
    group: list[Column] = []
    for column in table.columns[len(names) :]:
        if group and _width([*group, column]) > room:
            yield _part(table, names, group)
            group = []
        group.append(column)
    yield _part(table, names, group)


def _part(table: Table, names: Sequence[Column], others: Sequence[Column]) -> Table:
    part = Table(title=table.title and shown(str(table.title)))
    for column in names:
        part.add_column(column.header, overflow="fold")
    for column in others:
        part.add_column(
            column.header, justify=column.justify, no_wrap=column.justify == "right", overflow="fold"
        )
    for cells in zip(*(column.cells for column in (*names, *others)), strict=True):
        part.add_row(*(shown(str(cell)) for cell in cells))
    return part


def _width(columns: Sequence[Column]) -> int:
    texts = ([str(column.header), *map(str, column.cells)] for column in columns)
    return 1 + sum(max(map(cell_len, column)) + BESIDE_A_CELL for column in texts)
