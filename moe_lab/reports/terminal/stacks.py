"""Tables of at most 80 columns in one piece.

A column is a stack of items: their headings stand below each other, and so do their cells. An item that is the same in
all rows stands in the title.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from moe_lab.config.terminal import one_line

WIDTH = 80
GAP = 2
"""Blanks between two columns."""
BREAKS = re.compile(r"(?<=[,=/_:])(?=.)|(?<=[-.])(?=[A-Za-z])")
"""Where a name may go on in the next line: not within a number."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """A heading and one cell per row.

    A name may be the same in all rows and stand in the title. It breaks behind commas, dots and the like, where a
    number breaks at blanks only.
    """

    heading: str
    cells: Sequence[str]
    name: bool = False
    shared: bool = False
    """Whether it stands in the title where all cells are equal. All names do."""

    def __post_init__(self) -> None:
        # shown before columns are as wide as their cells
        object.__setattr__(self, "cells", [one_line(cell) for cell in self.cells])


@dataclass(frozen=True, kw_only=True)
class StackedTable:
    """A title, and the stacks that are shown."""

    title: str
    stacks: list[list[Item]]

    @property
    def headings(self) -> list[str]:
        """The headings of all items in the table."""
        return [item.heading for stack in self.stacks for item in stack]


def names(cells: Mapping[str, Sequence[str]]) -> list[Item]:
    """A stack of names, with the cells of each heading."""
    return [Item(heading=heading, cells=each, name=True) for heading, each in cells.items()]


def numbers(cells: Mapping[str, Sequence[str]]) -> list[Item]:
    """A stack of numbers, with the cells of each heading."""
    return [Item(heading=heading, cells=each) for heading, each in cells.items()]


def stacked_table(title: str, stacks: Sequence[Sequence[Item]], marks: Sequence[str] = ()) -> StackedTable:
    """The table without items that no row has; shared items and the marks of all rows stand in the title."""
    items = [item for stack in stacks for item in stack if any(cell not in ("", "-") for cell in item.cells)]
    in_title = [item for item in items if (item.name or item.shared) and len(set(item.cells)) == 1]
    texts = [f"{item.heading}={item.cells[0]}" for item in in_title]
    kept = [[item for item in stack if item in items and item not in in_title] for stack in stacks]
    return StackedTable(
        title=": ".join(filter(None, [title, " ".join([*texts, *marks])])),
        stacks=[stack for stack in kept if stack],
    )


def print_stacked(table: StackedTable, explained: Mapping[str, str]) -> None:
    """Print the title, the table, and for each of its headings the line that explains it."""
    print("\n".join(wrapped(table.title, WIDTH, name=True)), end="\n\n")
    if table.stacks:
        # Brackets and colons in cells are printed as they are: overrides may hold them.
        # No colours: stdout shows escape sequences instead of sending them.
        console = Console(file=sys.stdout, width=WIDTH, markup=False, emoji=False, color_system=None)
        console.print(_rich_table(table))
        print()
    lines = [f"{heading}: {explained[heading]}" for heading in table.headings if heading in explained]
    for line in lines:
        print("\n".join(wrapped(line, WIDTH, name=False)))
    if lines:
        print()


def wrapped(text: str, width: int, name: bool) -> list[str]:
    """Lines of at most `width` characters. They break at blanks, then behind separators, and at last anywhere."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
            continue
        if lines[-1]:
            lines.append("")
        for part in _parts(word, name) if cell_len(word) > width else [word]:
            if lines[-1] and cell_len(lines[-1]) + cell_len(part) > width:
                lines.append("")
            while cell_len(part) > width:
                lines[-1], part = part[:width], part[width:]
                lines.append("")
            lines[-1] += part
    return lines


def _parts(word: str, name: bool) -> list[str]:
    return BREAKS.split(word) if name else [word]


def _rich_table(stacked: StackedTable) -> Table:
    """The table with every cell wrapped, so that its columns and the blanks between them take at most 80."""
    columns = [_Column.of(stack) for stack in stacked.stacks]
    table = Table(box=SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    rows = []
    for column, width in zip(columns, _widths(columns), strict=True):
        heading, *cells = ["\n".join(column.lines(cell, width)) for cell in column.cells]
        table.add_column(heading, justify="left" if column.name else "right", no_wrap=True)
        rows.append(cells)
    table.leading = int(any("\n" in cell for cells in rows for cell in cells))
    for row in zip(*rows, strict=True):
        table.add_row(*row)
    return table


@dataclass(frozen=True)
class _Column:
    """The lines of a stack: those of the heading first, then those of each row."""

    cells: list[list[str]]
    name: bool

    @classmethod
    def of(cls, stack: Sequence[Item]) -> _Column:
        rows = zip(*(item.cells for item in stack), strict=True)
        cells = [[item.heading for item in stack], *([cell for cell in row if cell] for row in rows)]
        return cls([["-"] if set(lines) == {"-"} else lines for lines in cells], stack[0].name)

    def lines(self, cell: list[str], width: int) -> list[str]:
        return [line for text in cell for line in wrapped(text, width, self.name)]

    @property
    def width(self) -> int:
        """Without any wrapping."""
        return max(cell_len(text) for cell in self.cells for text in cell)

    @property
    def narrowest(self) -> int:
        """The width below which a word would be broken."""
        words = [word for cell in self.cells for text in cell for word in text.split(" ")]
        return max(cell_len(part) for word in words for part in _parts(word, self.name))


def _widths(columns: Sequence[_Column]) -> list[int]:
    """A width for each column. Names are wrapped first, then numbers; words break where nothing else helps."""
    widths, narrowest = [column.width for column in columns], [column.narrowest for column in columns]
    while sum(widths) + GAP * (len(columns) - 1) > WIDTH:
        slack = [width > least for width, least in zip(widths, narrowest, strict=True)]
        names = [column.name for column in columns]
        widest = max(
            range(len(columns)), key=lambda i: (slack[i] and names[i], slack[i], names[i], widths[i])
        )
        widths[widest] -= 1
    return widths
