"""Messages of a command's workers to each other and to the command: JSON lines in a folder, one file per worker.

Results are not sent. Workers read them from the output folder, as any other command does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moe_lab.config.terminal import without_passwords
from moe_lab.results.atomic import writing

_current: ContextVar[Board | None] = ContextVar("board", default=None)


@dataclass
class _Read:
    """The whole lines that were read of a growing file."""

    size: int = 0
    """Bytes of these lines."""
    lines: list[dict[str, Any]] = field(default_factory=list)

    def lines_of(self, file: Path) -> list[dict[str, Any]]:
        """All whole lines of the file. The last line may still be incomplete and is left out."""
        with file.open("rb") as stream:
            stream.seek(self.size)
            new, end, _ = stream.read().rpartition(b"\n")
        if end:
            self.size += len(new) + len(end)
            self.lines += map(json.loads, new.splitlines())
        return self.lines


@dataclass(frozen=True)
class Board:
    """The folder of a command's workers."""

    folder: Path
    worker: int | None = None
    """Number of this worker; None: the command that started the workers."""
    _read: dict[Path, _Read] = field(default_factory=dict, compare=False, repr=False)
    """The lines already read of each worker's file. Every step reads the files, and only their new lines."""

    def begin(self, total: int, stored: list[str]) -> None:
        """Write the number of steps, and the names of the steps with a stored result."""
        self._write(total=total, stored=stored)

    def end(self, name: str, error: str | None = None) -> None:
        """Write that a step is done, or the error with which it failed."""
        self._write(name=name, error=None if error is None else without_passwords(error))

    def total(self) -> int | None:
        """The number of steps; None until a worker has written it."""
        return max((line["total"] for _, line in self._lines() if "total" in line), default=None)

    def stored(self) -> set[str]:
        """The names of the steps that were stored before."""
        return {name for _, line in self._lines() for name in line.get("stored", ())}

    def made(self) -> set[str]:
        """The names of the steps that workers finished or failed at."""
        return {line["name"] for _, line in self._lines() if "name" in line}

    def failures(self) -> dict[str, str]:
        """The errors of other workers, by the step's name, and where each worker's output is."""
        errors: dict[tuple[int, str], str] = {}
        for worker, line in self._lines():
            if line.get("error"):
                errors[worker, line["name"]] = line["error"]
            elif "name" in line:  # tried again, and done
                errors.pop((worker, line["name"]), None)
        return {
            name: f"{error}\n(worker {worker}: {log_file(self.folder, worker)})"
            for (worker, name), error in errors.items()
            if worker != self.worker
        }

    def _write(self, **line: Any) -> None:
        if self.worker is None:
            return
        file = self.folder / f"worker-{self.worker}.jsonl"
        with writing(file):
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.write(handle, (json.dumps(line) + "\n").encode())
            finally:
                os.close(handle)

    def _lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The whole lines of all workers with the worker's number."""
        for file in sorted(self.folder.glob("worker-*.jsonl")):
            number = int(file.stem.rpartition("-")[2])
            for line in self._read.setdefault(file, _Read()).lines_of(file):
                yield number, line


def log_file(folder: Path, worker: int) -> Path:
    """The file with a worker's output."""
    return folder / f"worker-{worker}.log"


def current() -> Board | None:
    """The board of this process, if it is a worker or a command with workers."""
    return _current.get()


def is_worker() -> bool:
    """Whether this process is a worker. The command that started it writes the tables."""
    board = current()
    return board is not None and board.worker is not None


@contextmanager
def on_board(board: Board) -> Iterator[None]:
    token = _current.set(board)
    try:
        yield
    finally:
        _current.reset(token)
