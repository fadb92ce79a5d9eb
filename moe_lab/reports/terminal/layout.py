"""Tables on the terminal: numbers as text, stacked columns in 80 characters, and plain tables in the full width."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table

from moe_lab.config.terminal import one_line, shown

# Numbers as tables on the terminal show them


def number(value: float | None, sign: bool = False) -> str:
    """Four decimals (four digits for a large number), or a dash for a number that does not exist."""
    if value is None:
        return "-"
    return f"{value:{'+' if sign else ''}{'.4f' if abs(value) < 1000 else '.4g'}}"


def interval(bounds: Sequence[float] | None, sign: bool = False) -> str:
    """`[low, high]`, or a dash."""
    return "-" if bounds is None else f"[{number(bounds[0], sign)}, {number(bounds[1], sign)}]"


def seconds(value: float | None) -> str:
    """Seconds with one decimal."""
    return "-" if value is None else f"{value:,.1f} s"


def count(value: float | None) -> str:
    """A whole number with separators."""
    return "-" if value is None else f"{value:,.0f}"


def mebibytes(value: float | None) -> str:
    """Bytes as MiB."""
    return "-" if value is None else f"{value / 2**20:,.0f} MiB"


def percent(value: float | None) -> str:
    """A fraction as per cent with one decimal."""
    return "-" if value is None else f"{100 * value:.1f}%"


# Tables of at most 80 columns in one piece
#
# A column is a stack of items: their headings are below each other, and so are their cells. An item that is the same in
# all rows is shown in the title.

WIDTH = 80
GAP = 2
"""Blanks between two columns."""
BREAKS = re.compile(r"(?<=[,=/_:])(?=.)|(?<=[-.])(?=[A-Za-z])")
"""Where a name may be broken into lines: not within a number."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """A heading and one cell per row.

    A name that is the same in all rows is shown in the title. A name breaks after commas, dots and the like, a number
    only at blanks.
    """

    heading: str
    cells: Sequence[str]
    name: bool = False
    shared: bool = False
    """Whether to show it in the title if all cells are equal. Names always are."""

    def __post_init__(self) -> None:
        # escaped before the widths of columns are computed from their cells
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
    """The table without empty items. Shared items and the notes of all rows are in the title."""
    items = [item for stack in stacks for item in stack if any(cell not in ("", "-") for cell in item.cells)]
    in_title = [item for item in items if (item.name or item.shared) and len(set(item.cells)) == 1]
    texts = [f"{item.heading}={item.cells[0]}" for item in in_title]
    kept = [[item for item in stack if item in items and item not in in_title] for stack in stacks]
    return StackedTable(
        title=": ".join(filter(None, [title, " ".join([*texts, *marks])])),
        stacks=[stack for stack in kept if stack],
    )


def print_stacked(table: StackedTable, explained: Mapping[str, str]) -> None:
    """Print the title, the table, and a line for each explained heading.

    On a terminal that is wide enough every item has a column of its own.
    """
    print("\n".join(wrapped(table.title, WIDTH, name=True)), end="\n\n")
    if table.stacks:
        stacks, width = _in_terminal(table.stacks)
        # Brackets and colons in cells are printed as they are: overrides may hold them.
        # No colours: stdout shows escape sequences instead of sending them.
        console = Console(file=sys.stdout, width=width, markup=False, emoji=False, color_system=None)
        console.print(_rich_table(stacks, width))
        print()
    lines = [f"{heading}: {explained[heading]}" for heading in table.headings if heading in explained]
    for line in lines:
        print("\n".join(wrapped(line, WIDTH, name=False)))
    if lines:
        print()


def _in_terminal(stacks: list[list[Item]]) -> tuple[list[list[Item]], int]:
    """The stacks, or each item on its own where the terminal has room for that, and the width of the table."""
    apart = [[item] for stack in stacks for item in stack]
    columns = [_Column.of(stack) for stack in apart]
    least = _total([column.narrowest if column.name else column.width for column in columns])
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    if room <= WIDTH or least > room:
        return stacks, WIDTH
    return apart, room


def wrapped(text: str, width: int, name: bool) -> list[str]:
    """Lines of at most `width` characters. They break at blanks, then after separators, and at last anywhere."""
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


def _rich_table(stacks: Sequence[Sequence[Item]], room: int) -> Table:
    """The table with wrapped cells, in at most `room` characters."""
    columns = [_Column.of(stack) for stack in stacks]
    table = Table(box=SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    rows = []
    for column, width in zip(columns, _widths(columns, room), strict=True):
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
        """The width without wrapping."""
        return max(cell_len(text) for cell in self.cells for text in cell)

    @property
    def narrowest(self) -> int:
        """The width below which a word would be broken."""
        words = [word for cell in self.cells for text in cell for word in text.split(" ")]
        return max(cell_len(part) for word in words for part in _parts(word, self.name))


def _total(widths: Sequence[int]) -> int:
    """The width of a table with columns of these widths."""
    return sum(widths) + GAP * (len(widths) - 1)


def _widths(columns: Sequence[_Column], room: int) -> list[int]:
    """A width for each column. Names are wrapped first, then numbers. Words are broken as a last resort."""
    widths, narrowest = [column.width for column in columns], [column.narrowest for column in columns]
    while _total(widths) > room:
        slack = [width > least for width, least in zip(widths, narrowest, strict=True)]
        names = [column.name for column in columns]
        widest = max(
            range(len(columns)), key=lambda i: (slack[i] and names[i], slack[i], names[i], widths[i])
        )
        widths[widest] -= 1
    return widths


# Tables on stdout: a table wider than the terminal is printed in parts, as in pandas

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
