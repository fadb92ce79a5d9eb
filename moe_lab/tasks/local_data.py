"""Local JSON Lines files instead of a hub data set: `<folder>/<split>.jsonl` with the same columns.

The JSON loader of `datasets` is not used: it caches by path and turns strings that look like dates into timestamps.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import TaskError, reading

if TYPE_CHECKING:
    from datasets import Dataset

Rows = list[dict[str, Any]]


@dataclass(eq=False, repr=False, kw_only=True)
class LocalSplits(dict):
    """{split: Dataset}, as a task's `custom_dataset` returns it. A file is read when its split is first used."""

    folder: Path
    read: Callable[[Path], Rows]
    """`read_rows`, which may keep what several tasks share."""
    evaluated: str | None
    shots: int | None
    """Number of few-shot examples. Without any, the other splits are empty: lm-eval uses all that its YAML names."""
    only: tuple[str, Any] | None
    """(column, value) of the rows to keep; None: all."""

    def __missing__(self, split: str) -> Dataset:
        from datasets import Dataset

        if split == self.evaluated or self.shots:
            self[split] = Dataset.from_list(self._rows(split))
        else:
            self[split] = self[self.evaluated].select([])
        return self[split]

    def _rows(self, split: str) -> Rows:
        file = self.folder / f"{split}.jsonl"
        if not file.exists():
            purpose = "the documents" if split == self.evaluated else f"{self.shots} few-shot examples"
            there = ", ".join(sorted(other.name for other in self.folder.glob("*.jsonl")))
            raise TaskError(
                f"{file} is missing: {purpose} come from it, one JSON object per line.\n"
                f"{self.folder} has {there or 'no .jsonl file'}."
            )
        rows = self.read(file)
        if self.only is None:
            return rows
        column, value = self.only
        rows = [row for row in rows if row.get(column) == value]
        if not rows:
            raise TaskError(f"{file} has no row with {column}={value!r}.")
        return rows


def read_rows(file: Path) -> Rows:
    """The rows of a JSON Lines file. Raises TaskError naming the file, and the line that is not as the first one."""
    rows: Rows = []
    with reading(file, raises=TaskError), file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                with reading(f"{file}, line {number}", raises=TaskError):
                    row = json.loads(line)
                    if missing := (rows[0] if rows else row).keys() - row.keys():
                        raise ValueError(f"no column {min(missing)!r}, which the first line has")
                    rows.append(row)
    if not rows:
        raise TaskError(f"{file} is empty.")
    return rows
