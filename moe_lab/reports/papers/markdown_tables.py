"""Tables in Markdown."""

from collections.abc import Iterable, Sequence

from moe_lab.reports.columns import Column


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(_line(cells) for cells in [header, ["---"] * len(header), *rows])


def _line(cells: Sequence[str]) -> str:
    """A line of a table. A bar in a cell is escaped."""
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def column_lines(columns: Sequence[Column]) -> str:
    """Columns as a table in Markdown, without those that are empty."""
    shown = [column for column in columns if column.shown]
    rows = zip(*(column.cells for column in shown), strict=True)
    return table_lines([column.heading for column in shown], rows)
