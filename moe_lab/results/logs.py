"""What a run appends while it works: the answers, one line each, and its own log."""

import errno
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any

from moe_lab.config.terminal import print_message, without_passwords
from moe_lab.results.atomic import writing
from moe_lab.results.stored_files import typed

# The log of answered requests: one line each, appended and flushed at once. A restart replays it
#
# The first line is the header, which identifies the run. A log with another identity, model commit or library version
# is renamed, and a new one begins. A line carries the cost since the line before, so that the sums are over all
# sessions, including answers that were computed again after a kill.

Header = Mapping[str, object]
"""What identifies the run of a log, as plain JSON."""


@dataclass(frozen=True)
class Line:
    """A line of the log. It has only what is not None."""

    header: dict[str, object] | None = None
    key: str | None = None
    """Of the request that `response` answers."""
    response: Any = None
    cost: dict[str, float] | None = None
    environment: dict[str, object] | None = None
    """Device, experts and attention implementation."""
    opened: dict[str, object] | None = None
    """`EngineLM.session_info` of a session that opened the model."""

    def encode(self) -> bytes:
        parts = {one.name: getattr(self, one.name) for one in fields(self)}
        return (
            json.dumps({name: part for name, part in parts.items() if part is not None}) + "\n"
        ).encode()


def request_key(kind: str, args: tuple[Any, ...], repeat: int) -> str:
    """SHA-256 of a request."""
    text = json.dumps([kind, list(args), repeat], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


Answers = dict[str, Any]
"""Responses by request key; lm-eval's tuples (log-likelihood, is greedy) are tuples."""


class ResponseLog(Answers):
    """Answers by request key, stored in `path`. `header` identifies the run (`Run.answers_header`)."""

    def __init__(self, path: Path, header: Header):
        super().__init__()
        self.path, self.header = path, header
        self.cost: dict[str, float] = {}
        """Sums over all answers, also of earlier sessions; `peak_...` are maxima."""
        self.environment: dict[str, object] = {}
        """Of the latest answers: device, experts and attention implementation."""
        self.session_info: Mapping[str, object] = {}
        """`EngineLM.session_info` of the latest session that opened the model."""
        self.set_aside: Path | None = None
        """The new path of a log with another header that was in the place of this one."""
        with writing(path):
            lines = _whole_lines(path) if path.is_file() else []
            is_own = bool(lines) and lines[0].header == header
            if lines and not is_own:
                names = (path.with_name(f"{path.stem}.{i}.old{path.suffix}") for i in count(1))
                self.set_aside = next(name for name in names if not name.exists())
                path.rename(self.set_aside)
            # unbuffered: closing the file does not repeat a failed write
            self._file = path.open("ab", buffering=0)
            if not is_own:
                self._file.truncate(0)
                self._write([Line(dict(header))])
        for line in lines[1:] if is_own else []:
            self._add(line)
        self.absorb()

    def absorb(self) -> None:
        """Move the lines of the logs of other processes of torchrun, `responses.<rank>.jsonl`, into this one."""
        for path in logs_of_ranks(self.path):
            lines = _whole_lines(path)
            if lines and lines[0].header == self.header:
                with writing(self.path):
                    self._write(lines[1:])
                    path.unlink()
                for line in lines[1:]:
                    self._add(line)

    def answer(self, key: str, response: Any, cost: dict[str, float]) -> None:
        """Store one answer and its cost. Raises ResultsError if it cannot be written."""
        self._append(Line(key=key, response=response, cost=cost or None))

    def spend(
        self, cost: dict[str, float], environment: Mapping[str, object] | None = None
    ) -> None:
        """Store a cost that belongs to no single answer, such as loading, and its environment."""
        self._append(Line(cost=cost, environment=dict(environment) if environment else None))

    def keep_session_info(self, info: Mapping[str, object]) -> None:
        """Store `EngineLM.session_info`."""
        self._append(Line(opened=dict(info)))

    def close(self) -> None:
        self._file.close()

    def _append(self, line: Line) -> None:
        with writing(self.path):
            self._write([line])
        self._add(line)

    def _write(self, lines: Iterable[Line]) -> None:
        content = b"".join(line.encode() for line in lines)
        if self._file.write(content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _add(self, line: Line) -> None:
        self.update(_answers([line]))
        self.environment = self.environment if line.environment is None else line.environment
        self.session_info = self.session_info if line.opened is None else line.opened
        for name, amount in (line.cost or {}).items():
            before = self.cost.get(name, 0)
            self.cost[name] = max(before, amount) if name.startswith("peak") else before + amount


def logs_of_ranks(path: Path) -> list[Path]:
    """The logs of other processes of torchrun next to that of process 0."""
    name = re.compile(rf"{re.escape(path.stem)}\.\d+")
    return [other for other in path.parent.glob("*.jsonl") if name.fullmatch(other.stem)]


def answers_in(path: Path, header: Header) -> int:
    """The number of answers in a log with this header, and in those of other processes of torchrun."""
    logs = [path, *logs_of_ranks(path)]
    read = [_readable(log.read_bytes()) for log in logs if log.is_file()]
    return len(
        _answers(line for lines in read if lines and lines[0].header == header for line in lines)
    )


def _answers(lines: Iterable[Line]) -> Answers:
    return {
        line.key: tuple(line.response) if isinstance(line.response, list) else line.response
        for line in lines
        if line.key is not None and line.response is not None
    }


def _whole_lines(path: Path) -> list[Line]:
    """The log's readable lines. An incomplete last line, after a kill or a full disk, is cut off the file."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    return _readable(content[:whole])


def _readable(content: bytes) -> list[Line]:
    lines = []
    for line in content.splitlines():
        # a damaged line is a missing answer, which is computed again
        with suppress(ValueError, RecursionError):
            lines.append(typed(Line, json.loads(line)))
    return lines


# The handlers of a run's log records


class RunLog(logging.FileHandler):
    """Appends every record to a file, without passwords. Raises ResultsError if the file cannot be opened."""

    def __init__(self, path: Path):
        with writing(path):
            super().__init__(path, encoding="utf-8", errors="backslashreplace")

    def format(self, record: logging.LogRecord) -> str:
        return without_passwords(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:
        """Of a full disk the log of answers says so, which ends the run."""

    def close(self) -> None:
        with suppress(OSError):
            super().close()


class WarningsOnce(logging.Handler):
    """Prints the first line of each warning on stderr, once: lm-eval's name the document in further lines."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage().partition("\n")[0]
        if record.levelno == logging.WARNING and line not in self._printed:
            self._printed.add(line)
            print_message(f"Warning: {line}")
