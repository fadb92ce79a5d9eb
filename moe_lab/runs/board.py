"""Messages between the workers of a command, and to the command: JSON lines in a folder, one file per worker.

Results do not pass through it. Workers find those in the output folder, as any other command does.
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
    """The whole lines of a file that grows, as far as they were read."""

    size: int = 0
    """Bytes of these lines."""
    lines: list[dict[str, Any]] = field(default_factory=list)

    def lines_of(self, file: Path) -> list[dict[str, Any]]:
        """All whole lines of the file; the last one may be under way."""
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
    """What was read of each worker's file before: a file is read on from there, as it is asked for at every step."""

    def begin(self, total: int, stored: list[str]) -> None:
        """Say how many steps there are, and the names of those with a stored result."""
        self._write(total=total, stored=stored)

    def end(self, name: str, error: str | None = None) -> None:
        """Say that a step is done, or with what error it failed."""
        self._write(name=name, error=None if error is None else without_passwords(error))

    def total(self) -> int | None:
        """The number of steps; None before a worker knows it."""
        return max((line["total"] for _, line in self._lines() if "total" in line), default=None)

    def stored(self) -> set[str]:
        """The names of the steps that were stored before."""
        return {name for _, line in self._lines() for name in line.get("stored", ())}

    def made(self) -> set[str]:
        """The names of the steps that workers made, or tried to."""
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
    """What a worker prints."""
    return folder / f"worker-{worker}.log"


def current() -> Board | None:
    """The board of this process: of a worker, or of a command with workers."""
    return _current.get()


def is_worker() -> bool:
    """Whether another command writes the tables of this one's results."""
    board = current()
    return board is not None and board.worker is not None


@contextmanager
def on_board(board: Board) -> Iterator[None]:
    token = _current.set(board)
    try:
        yield
    finally:
        _current.reset(token)
