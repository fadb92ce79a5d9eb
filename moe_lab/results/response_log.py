"""The log of answered requests: one line each, appended and flushed at once. A restart replays it.

The first line is the header, which identifies the run. A log with another identity, model commit or
library version is renamed, and a new one begins. A line carries the cost since the line before, so
that the sums are over all sessions, including answers that were computed again after a kill.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from moe_lab.results.atomic import writing
from moe_lab.results.stored_files import typed

Header = Mapping[str, object]
"""What identifies the run of a log, as plain JSON."""


@dataclass(frozen=True)
class Line:
    """A line of the log. Fields that are None are not written."""

    header: dict[str, object] | None = None
    key: str | None = None
    """Of the request that `response` answers."""
    response: Any = None
    log_probability: float | None = None
    """The mean log-probability of the tokens of a generated `response`, in nats."""
    cost: dict[str, float] | None = None
    environment: dict[str, object] | None = None
    """Device, experts and attention implementation."""
    opened: dict[str, object] | None = None
    """`EngineLM.session_info` of a session that opened the model."""

    def encode(self) -> bytes:
        """The line as JSON, with its newline."""
        parts = {}
        for field in fields(self):
            part = getattr(self, field.name)
            if part is not None:
                parts[field.name] = part
        return f"{json.dumps(parts)}\n".encode()


def request_key(kind: str, args: tuple[Any, ...], repeat: int) -> str:
    """SHA-256 of a request."""
    text = json.dumps([kind, list(args), repeat], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


Answers = dict[str, Any]
"""Responses by request key; lm-eval's tuples (log-likelihood, is greedy) are tuples."""


class ResponseLog(Answers):
    """Answers by request key, stored in `path`. `header` identifies the run
    (`Run.answers_header`)."""

    def __init__(self, path: Path, header: Header):
        super().__init__()
        self.path = path
        self.header = header
        self.cost: dict[str, float] = {}
        """Sums over all answers, also of earlier sessions; `peak_...` are maxima."""
        self.environment: dict[str, object] = {}
        """Of the latest answers: device, experts and attention implementation."""
        self.log_probabilities: dict[str, float] = {}
        """Of generated answers, by key: the mean over their tokens, in nats. lm-eval's own code and
        earlier versions of this package store none."""
        self.session_info: Mapping[str, object] = {}
        """`EngineLM.session_info` of the latest session that opened the model."""
        self.set_aside: Path | None = None
        """The new path of a log with another header that was in the place of this one."""
        with writing(path):
            lines = _whole_lines(path) if path.is_file() else []
            continues = bool(lines) and lines[0].header == header
            if lines and not continues:
                self.set_aside = _free_name(path)
                path.rename(self.set_aside)
            # unbuffered: closing the file does not repeat a failed write
            self._file = path.open("ab", buffering=0)
            if not continues:
                self._file.truncate(0)
                self._write([Line(dict(header))])
        if continues:
            for line in lines[1:]:
                self._add(line)
        self.absorb()

    def absorb(self) -> None:
        """Move the lines of the logs of other processes of torchrun, `responses.<rank>.jsonl`, into
        this one."""
        for path in logs_of_ranks(self.path):
            lines = _whole_lines(path)
            if lines and lines[0].header == self.header:
                with writing(self.path):
                    self._write(lines[1:])
                    path.unlink()
                for line in lines[1:]:
                    self._add(line)

    def answer(self, key: str, response: Any, cost: dict[str, float]) -> None:
        """Store one answer and its cost, and the log-probability of a generated text that has one.

        Raises ResultsError if it cannot be written.
        """
        log_probability = getattr(response, "log_probability", None)
        line = Line(key=key, response=response, log_probability=log_probability, cost=cost or None)
        self._append(line)

    def spend(
        self, cost: dict[str, float], environment: Mapping[str, object] | None = None
    ) -> None:
        """Store a cost that belongs to no single answer, such as loading, and its environment."""
        self._append(Line(cost=cost, environment=dict(environment) if environment else None))

    def keep_session_info(self, info: Mapping[str, object]) -> None:
        """Store `EngineLM.session_info`."""
        self._append(Line(opened=dict(info)))

    def close(self) -> None:
        """Close the file. The answers stay in memory."""
        self._file.close()

    def _append(self, line: Line) -> None:
        """Add a line to the file, then to the answers and sums."""
        with writing(self.path):
            self._write([line])
        self._add(line)

    def _write(self, lines: Iterable[Line]) -> None:
        """Add lines to the file. Raises OSError where only a part could be written."""
        content = b"".join(line.encode() for line in lines)
        if self._file.write(content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _add(self, line: Line) -> None:
        """Add a line to the answers, to the sums of costs, and to what is known of the session."""
        self.update(_answers([line]))
        if line.key is not None and line.response is not None:
            self.log_probabilities.pop(line.key, None)
            if line.log_probability is not None:
                self.log_probabilities[line.key] = line.log_probability
        if line.environment is not None:
            self.environment = line.environment
        if line.opened is not None:
            self.session_info = line.opened
        for name, amount in (line.cost or {}).items():
            before = self.cost.get(name, 0)
            if name.startswith("peak"):
                self.cost[name] = max(before, amount)
            else:
                self.cost[name] = before + amount


def _free_name(path: Path) -> Path:
    """The first of `responses.1.old.jsonl`, `responses.2.old.jsonl`, ... that does not exist."""
    number = 1
    while True:
        free = path.with_name(f"{path.stem}.{number}.old{path.suffix}")
        if not free.exists():
            return free
        number += 1


def logs_of_ranks(path: Path) -> list[Path]:
    """The logs of other processes of torchrun next to that of process 0."""
    name = re.compile(rf"{re.escape(path.stem)}\.\d+")
    return [log for log in path.parent.glob("*.jsonl") if name.fullmatch(log.stem)]


def answers_in(path: Path, header: Header) -> int:
    """The number of answers in a log with this header, and in those of other processes of
    torchrun."""
    answers: Answers = {}
    for log in (path, *logs_of_ranks(path)):
        lines = _readable(log.read_bytes()) if log.is_file() else []
        if lines and lines[0].header == header:
            answers |= _answers(lines)
    return len(answers)


def _answers(lines: Iterable[Line]) -> Answers:
    """The answers in the lines that have one. Of two to one request the later counts."""
    answers: Answers = {}
    for line in lines:
        if line.key is None or line.response is None:
            continue
        response = line.response
        answers[line.key] = tuple(response) if isinstance(response, list) else response
    return answers


def _whole_lines(path: Path) -> list[Line]:
    """The log's readable lines. An incomplete last line, after a kill or a full disk, is cut off
    the file."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    return _readable(content[:whole])


def _readable(content: bytes) -> list[Line]:
    """The lines of a log's content that can be read."""
    lines = []
    for line in content.splitlines():
        # a damaged line is a missing answer, which is computed again
        with suppress(ValueError, RecursionError):
            lines.append(typed(Line, json.loads(line)))
    return lines
