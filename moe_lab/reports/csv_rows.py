"""Rows of numbers as CSV files."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moe_lab.config.terminal import shown
from moe_lab.results.atomic import write_file

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""The first characters of cells that a spreadsheet would execute."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|-")
"""A number, or the dash for a missing one."""


def safe_cell(value: Any) -> Any:
    """The value of a CSV cell. A text that a spreadsheet would read as a formula gets a leading apostrophe.

    Control characters are escaped, because a carriage return would end the row. NaN is a missing number.
    """
    if isinstance(value, float) and value != value:
        return None
    if not isinstance(value, str) or NUMBER.fullmatch(value):
        return value
    return ("'" if value.startswith(FORMULA) else "") + shown(value)


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as CSV, with the columns of the first row. None and missing keys are empty fields."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: safe_cell(value) for key, value in row.items()} for row in rows)
    return stream.getvalue()


def write_rows(rows: Sequence[Mapping[str, object]], path: Path) -> Path:
    """Write rows that share their keys as CSV."""
    return write_file(path, csv_text(rows))
