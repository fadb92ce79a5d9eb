"""Local data files, read by `datasets` as lm-eval reads them, and read anew each time.

`datasets` finds what it has read before by a file's path and time, and so would return the rows of
a file that was replaced by one of the same time. Here it reads into a temporary folder and memory:
nothing is left on the disk.
"""

import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import (
    Dataset,
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    load_dataset,
)
from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as FORMATS

from moe_lab.errors import TaskError, first_line, reading


@dataclass(eq=False, repr=False, kw_only=True)
class LocalSplits(dict):
    """{split: Dataset}, as a task's `custom_dataset` returns it. A file is read when its split is
    first used."""

    folder: Path
    read: Callable[[Path], Dataset]
    """`read_json_lines`, which may keep what several tasks share."""
    evaluated: str | None
    shots: int | None
    """Number of few-shot examples. Without any, the other splits are empty: lm-eval uses all that
    its YAML names."""
    only: tuple[str, Any] | None
    """(column, value) of the rows to keep; None: all."""

    def __missing__(self, split: str) -> Dataset:
        """The rows of a split that is not read yet. Raises TaskError for a missing file, and for
        one without a row to keep."""
        if split != self.evaluated and not self.shots:
            self[split] = self[self.evaluated].select([])
            return self[split]
        file = self.folder / f"{split}.jsonl"
        if not file.exists():
            purpose = f"{self.shots} few-shot examples"
            if split == self.evaluated:
                purpose = "the documents"
            raise TaskError(f"{file} is missing: {purpose} come from it, one JSON object per line.")
        rows = self.read(file)
        if self.only is not None:
            column, value = self.only
            # a slice of a column is converted at once, and a column one value after the other
            values = rows[column][:] if column in rows.column_names else []
            numbers = [number for number, cell in enumerate(values) if cell == value]
            rows = rows.select(numbers)
            if not len(rows):
                raise TaskError(f"{file} has no row with {column}={value!r}.")
        self[split] = rows
        return rows


def read_json_lines(file: Path) -> Dataset:
    """The rows of a JSON Lines file, as `load_dataset("json", ...)` reads them.

    A row without a key of the others has None there, and a column of dates has times. Raises
    TaskError that names the file, and the line that is no JSON object.
    """
    _check_json_lines(file)
    with reading(file, raises=TaskError):
        rows: Dataset = load_fresh("json", data_files={"rows": str(file)})["rows"]
    return rows


def _check_json_lines(file: Path) -> None:
    """Raise TaskError for a file without rows, and for the first line that is no JSON object."""
    empty = True
    with reading(file, raises=TaskError), file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            if empty and line.lstrip().startswith("["):
                return  # one list of all rows, which `datasets` reads, too
            empty = False
            with reading(f"{file}, line {number}", raises=TaskError):
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"a JSON object is expected, not {type(row).__name__}")
    if empty:
        raise TaskError(f"{file} has no row.")


@dataclass(frozen=True)
class LocalFiles:
    """A task's `custom_dataset`: the files that its YAML names, as lm-eval reads them."""

    path: str
    """A format of `datasets`, or a folder."""
    name: str | None
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `load_dataset`."""

    def __call__(self, **_: Any) -> Any:
        return load_fresh(self.path, self.name, **self.options)


def is_local(path: str) -> bool:
    """Whether a `dataset_path` is a local folder, or a file format of `datasets`, whose files the
    task names."""
    return path in FORMATS or Path(path).exists()


def has_only_local_files(options: dict[str, Any]) -> bool:
    """Whether the `dataset_kwargs` of a local `dataset_path` name no address on the network, and no
    stream."""
    files = options.get("data_files")
    if isinstance(files, dict):
        files = list(files.values())
    return "://" not in repr(files) and not options.get("streaming")


def load_fresh(path: str, name: str | None = None, **options: Any) -> Any:
    """`datasets.load_dataset` of local files, without anything that it has stored."""
    with tempfile.TemporaryDirectory(prefix="moe_lab-data-") as cache, _quiet():
        try:
            return load_dataset(
                path, name, **{**options, "cache_dir": cache, "keep_in_memory": True}
            )
        except Exception as error:
            if error.__cause__ is None:
                raise
            # "An error occurred while generating the dataset": its cause says which
            raise ValueError(first_line(error.__cause__)) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside the context `datasets` shows no progress bars, and does not log the errors that it
    raises."""
    log = logging.getLogger("datasets")
    silent = are_progress_bars_disabled()
    level = log.level
    log.setLevel(logging.CRITICAL)
    disable_progress_bars()
    try:
        yield
    finally:
        log.setLevel(level)
        if not silent:
            enable_progress_bars()
