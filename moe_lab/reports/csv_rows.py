"""Rows of numbers as CSV files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moe_lab.config.terminal import shown
from moe_lab.results.atomic import write_atomically

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a cell begins with that a spreadsheet would execute."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|-")
"""A number, or the dash in the place of one."""


def safe_cell(value: Any) -> Any:
    """The value of a CSV cell; a text that a spreadsheet would read as a formula gets a leading apostrophe.

    Control characters are shown: a carriage return would end the row.
    """
    if not isinstance(value, str) or NUMBER.fullmatch(value):
        return value
    return ("'" if value.startswith(FORMULA) else "") + shown(value)


def safe_row(row: Mapping[str, object]) -> dict[str, object]:
    """A row whose values are `safe_cell`s."""
    return {key: safe_cell(value) for key, value in row.items()}


def write_rows(rows: Sequence[Mapping[str, object]], path: Path) -> Path:
    """Write rows that share their keys as CSV; None is an empty field."""
    stream = io.StringIO()
    safe = [safe_row(row) for row in rows]
    writer = csv.DictWriter(stream, fieldnames=list(safe[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(safe)
    write_atomically(path, stream.getvalue())
    return path
