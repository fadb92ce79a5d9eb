"""Local JSON Lines files instead of a hub data set: `<data_dir>/<folder>/<split>.jsonl` with the same columns.

The JSON loader of `datasets` is not used: it caches by path and turns strings that look like dates into timestamps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import TaskError, reading

if TYPE_CHECKING:
    from datasets import Dataset

INSERTED = re.compile(r"\{\{-?\s*(\w+)(?:[.\[][^{}\s]*)?\s*-?\}\}")
"""A column in a Jinja template without condition or filter."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class LocalData:
    """A task's `custom_dataset`: called by lm-eval, it returns {split: Dataset} from local files."""

    task: str
    data_dir: str
    folder: str
    column: str | None
    value: str | None
    needed: tuple[tuple[str, str], ...]
    """(split, purpose)"""
    shown: frozenset[str] = frozenset()
    """Columns that prompts or answers contain unchanged; they must not be null."""

    @property
    def path(self) -> Path:
        return Path(self.data_dir) / self.folder

    def __call__(self, **_: Any) -> dict[str, Dataset]:
        return _Splits({split: self._split(split, purpose) for split, purpose in self.needed})

    def _split(self, split: str, purpose: str) -> Dataset:
        file = self.path / f"{split}.jsonl"
        if not file.exists():
            raise TaskError(self._missing(file, purpose))
        rows = read_jsonl(file)
        stat = file.stat()
        state = (file.resolve(), stat.st_mtime_ns, stat.st_size)
        if null := _first_null(*state, self.shown):
            raise TaskError(f"{file}, row {null[0]}: {null[1]!r} is null, but {self.task} shows it.")
        if self.column is not None:
            if self.column not in rows[0]:
                raise TaskError(f"{file} has no column {self.column!r}, which task.data_filter names.")
            if self.value not in _by_value(*state, self.column):
                raise TaskError(f"{file} has no row with {self.column}={self.value!r} for {self.task}.")
        return _dataset(*state, self.column, self.value)

    def _missing(self, file: Path, purpose: str) -> str:
        missing = f"{file} is missing: {self.task} needs it {purpose}. It holds one JSON object per line."
        splits = sorted(other.name for other in self.path.glob("*.jsonl"))
        return f"{missing}\n{self.path} has {', '.join(splits) or 'no .jsonl file'}."


class _Splits(dict):
    """The splits by name. Splits that the run does not need are empty: lm-eval reads all splits of its YAML."""

    def __missing__(self, split: str) -> Dataset:
        self[split] = next(iter(self.values())).select([])
        return self[split]


def check_data_dir(data_dir: str, folder: str) -> None:
    """Raise TaskError if `data_dir` is no folder, or is itself the folder of a task.

    Args:
        folder: the task's folder in `data_dir`.
    """
    path = Path(data_dir)
    holds = "It is the folder with a folder for each task (docs/tasks.md)."
    if not path.exists():
        raise TaskError(f"data_dir={data_dir}: there is no such folder. {holds}")
    if not path.is_dir():
        raise TaskError(f"data_dir={data_dir} is a file. {holds}")
    splits = sorted(file.name for file in path.glob("*.jsonl"))
    if splits and not any(part.is_dir() for part in path.iterdir()) and not (path / folder).is_dir():
        above = path.absolute().parents[len(Path(folder).parts) - 1]
        raise TaskError(
            f"data_dir={data_dir} is a task's folder: it has {splits[0]} itself.\n"
            f"Give the one above: data_dir={above}"
        )


def needed_splits(config: dict[str, Any], num_fewshot: int | None) -> tuple[tuple[str, str], ...]:
    """The splits that a task configuration reads, with their purpose: the evaluated one and the few-shot one."""
    evaluated = config.get("test_split") or config.get("validation_split")
    if evaluated is None:
        raise TaskError(f"Task {config['task']} names neither a test nor a validation split.")
    needed = {evaluated: "for its documents"}
    shots = config.get("num_fewshot") if num_fewshot is None else num_fewshot
    fewshot = config.get("fewshot_config") or {}
    if shots and not fewshot.get("samples"):
        split = fewshot.get("split") or config.get("fewshot_split")
        split = split or config.get("training_split") or config.get("validation_split") or evaluated
        needed.setdefault(split, f"for its {shots} few-shot examples")
    return tuple(needed.items())


def shown_columns(config: dict[str, Any]) -> frozenset[str]:
    """Columns that a task's templates insert without condition or filter: `{{question}}`, `{{answer.strip()}}`.

    Empty for tasks with `process_docs`, which may rewrite the rows.
    """
    if config.get("process_docs"):
        return frozenset()
    templates = (config.get(key) for key in ("doc_to_text", "doc_to_target", "doc_to_choice"))
    matches = (INSERTED.findall(template) for template in templates if isinstance(template, str))
    return frozenset(column for columns in matches for column in columns)


def read_jsonl(file: Path) -> Rows:
    """Rows of a JSON Lines file. Raises TaskError naming the file, and the malformed line."""
    with reading(file, raises=TaskError):
        stat = file.stat()
        return _read(file.resolve(), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=16)
def _read(file: Path, _mtime_ns: int, _size: int) -> Rows:
    rows: Rows = []
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                rows.append(_row(line, rows[0] if rows else None, f"{file}, line {number}"))
    if not rows:
        raise TaskError(f"{file} is empty.")
    return rows


# The tasks of a group (MMLU has 57) are parts of one file. Results about the whole file are computed once


@lru_cache(maxsize=64)
def _first_null(file: Path, mtime_ns: int, size: int, columns: frozenset[str]) -> tuple[int, str] | None:
    """The number of the first row with null in one of some columns, and the column; None if there is none."""
    ordered = sorted(columns)
    for number, row in enumerate(_read(file, mtime_ns, size), start=1):
        for column in ordered:
            if row.get(column, "") is None:
                return number, column
    return None


@lru_cache(maxsize=4)
def _by_value(file: Path, mtime_ns: int, size: int, column: str) -> dict[Any, Rows]:
    """The rows of a file by their value in a column; rows whose value cannot be a key are left out."""
    rows: dict[Any, Rows] = {}
    for row in _read(file, mtime_ns, size):
        if isinstance(row[column], Hashable):
            rows.setdefault(row[column], []).append(row)
    return rows


@lru_cache(maxsize=32)
def _dataset(file: Path, mtime_ns: int, size: int, column: str | None, value: str | None) -> Dataset:
    """The rows of a file, or those with a value in a column. Several tasks, and views of one task, share them."""
    from datasets import Dataset

    state = (file, mtime_ns, size)
    return Dataset.from_list(_read(*state) if column is None else _by_value(*state, column)[value])


def _row(line: str, first: dict[str, Any] | None, place: str) -> dict[str, Any]:
    with reading(place, raises=TaskError, says="is not JSON"):
        row = json.loads(line)
    if not isinstance(row, dict):
        raise TaskError(f"{place}: not a JSON object.")
    missing = [column for column in first or () if column not in row]
    if missing:
        raise TaskError(f"{place}: no column {missing[0]!r}, which the first line has.")
    return row
