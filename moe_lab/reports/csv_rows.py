"""Rows of numbers as CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moe_lab.results.atomic import write_atomically


def write_rows(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Write rows that share their keys as CSV; None is an empty field."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, stream.getvalue())
    return path
