"""What a run appends while it works: the answers, one line each, and its own log."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from moe_lab.config.terminal import without_passwords
from moe_lab.errors import LeaseLostError
from moe_lab.results.atomic import write_atomically, writing
from moe_lab.results.lock import check_lease
from moe_lab.results.stored_files import free_name

# The log of answered requests: one line each, appended and flushed at once. A restart replays it
#
# The first line is the header, which identifies the run. A log with another identity, model commit or library version
# is renamed, and a new one begins. A line carries the cost since the line before, so that the sums are over all
# sessions, including answers that were computed again after a kill.

HEADER = "header"
PARTS = {HEADER: dict, "key": str, "cost": dict, "environment": dict, "opened": dict}
"""The keys of a line, besides the response, and their types."""


def request_key(kind: str, args: tuple[Any, ...], repeat: int) -> str:
    """SHA-256 of a request."""
    text = json.dumps([kind, list(args), repeat], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class ResponseLog:
    """Answers by request key, stored in `path`. `header` identifies the run (`answers_header`)."""

    def __init__(self, path: Path, header: dict[str, Any]):
        self.path = path
        self.cost: dict[str, float] = {}
        """Sums over all answers, also of earlier sessions; `peak_...` are maxima."""
        self.environment: dict[str, str | None] = {}
        """Of the latest answers: device, experts and attention implementation."""
        self.session_info: dict[str, Any] = {}
        """`EngineLM.session_info` of the latest session that opened the model."""
        self.set_aside: Path | None = None
        """The new path of a log with another header that was in the place of this one."""
        self._answers: dict[str, Any] = {}
        with writing(path):
            lines = _whole_lines(path) if path.is_file() else []
            is_own = bool(lines) and lines[0].get(HEADER) == header
            if lines and not is_own:
                self.set_aside = free_name(path)
                path.rename(self.set_aside)
            # Unbuffered: closing the file does not repeat a failed write. Appending: a process that was suspended
            # and has lost the run never writes over the lines of the next one.
            self._file = path.open("ab", buffering=0)
            if not is_own:
                self._file.truncate(0)
                self._write({HEADER: header})
        for line in lines[1:] if is_own else []:
            self._add(line)

    def __contains__(self, key: str) -> bool:
        return key in self._answers

    def __getitem__(self, key: str) -> Any:
        return self._answers[key]

    def get(self, key: str) -> Any:
        """The answer, or None."""
        return self._answers.get(key)

    def __len__(self) -> int:
        return len(self._answers)

    def answer(self, key: str, response: Any, cost: dict[str, float]) -> None:
        """Store one answer and its cost. Raises ResultsError if it cannot be written."""
        self._append({"key": key, "response": response, **({"cost": cost} if cost else {})})

    def spend(self, cost: dict[str, float], environment: dict[str, str | None] | None = None) -> None:
        """Store a cost that belongs to no single answer, such as loading, and its environment."""
        self._append({"cost": cost, **({"environment": environment} if environment else {})})

    def keep_session_info(self, info: dict[str, Any]) -> None:
        """Store `EngineLM.session_info`."""
        self._append({"opened": info})

    def close(self) -> None:
        self._file.close()

    def _append(self, line: dict[str, Any]) -> None:
        with writing(self.path):
            self._write(line)
        self._add(line)

    def _write(self, line: dict[str, Any]) -> None:
        content = (json.dumps(line) + "\n").encode()
        if self._file.write(content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _add(self, line: dict[str, Any]) -> None:
        if "key" in line and "response" in line:
            self._answers[line["key"]] = _answer(line["response"])
        self.environment = line.get("environment", self.environment)
        self.session_info = line.get("opened", self.session_info)
        for name, amount in line.get("cost", {}).items():
            before = self.cost.get(name, 0)
            self.cost[name] = max(before, amount) if name.startswith("peak") else before + amount


def logs_beside(folder: Path, name: str) -> list[Path]:
    """The logs of this name in the folders of other runs with the same model, method and task."""
    paths = folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*/{name}")
    return sorted(path for path in paths if path.parent != folder and path.is_file())


def stored_answers(path: Path) -> dict[str, Any]:
    """The answers of a log by key. Another process may be writing it."""
    lines = _readable(path.read_bytes())
    return {line["key"]: line["response"] for line in lines if "key" in line and "response" in line}


def answers_in(path: Path, header: dict[str, Any]) -> int:
    """The number of answers in a log with this header; 0 without one."""
    if not path.is_file():
        return 0
    lines = _readable(path.read_bytes())
    if not lines or lines[0].get(HEADER) != header:
        return 0
    return len({line["key"] for line in lines if "key" in line and "response" in line})


def adopt_answers(folder: Path, header: dict[str, Any]) -> None:
    """Copy the answers of another run with the same requests and other judges, if `folder` has none."""
    path = folder / "responses.jsonl"
    if path.exists():
        return
    for other in logs_beside(folder, path.name):
        with other.open("rb") as lines:
            first = lines.readline()
        if first == (json.dumps({HEADER: header}) + "\n").encode():
            write_atomically(path, other.read_bytes())
            return


def _answer(response: Any) -> Any:
    """The response with a list turned back into lm-eval's tuple (log-likelihood, is greedy)."""
    return tuple(response) if isinstance(response, list) else response


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The log's readable lines. An incomplete last line, after a kill or a full disk, is cut off the file."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    return _readable(content[:whole])


def _readable(content: bytes) -> list[dict[str, Any]]:
    lines = []
    for line in content.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a damaged line is a missing answer, which is computed again
        if isinstance(value, dict) and all(
            isinstance(value.get(key, kind()), kind) for key, kind in PARTS.items()
        ):
            lines.append(value)
    return lines


# run.log: a logging handler that survives a full disk


class RunLog(logging.Handler):
    """Appends every record to a file. After a failed write it prints one line on stderr and writes no more.

    Raises ResultsError if the file cannot be opened.
    """

    def __init__(self, path: Path):
        super().__init__()
        self.path = path
        self._failed = False
        with writing(path):
            # unbuffered: closing the file does not repeat a failed write
            self._file = path.open("ab", buffering=0)

    def emit(self, record: logging.LogRecord) -> None:
        if self._failed:
            return
        try:
            check_lease(self.path)
        except LeaseLostError:
            return  # the log is another process's now
        try:
            line = without_passwords(self.format(record)) + "\n"
            self._file.write(line.encode("utf-8", "backslashreplace"))
        except OSError as error:
            self._failed = True
            print(f"{self.path} could not be written: {error.strerror}. The run goes on.", file=sys.stderr)

    def close(self) -> None:
        self._file.close()
        super().close()


class WarningsOnce(logging.Handler):
    """Prints each warning on stderr, once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if record.levelno == logging.WARNING and line not in self._printed:
            self._printed.add(line)
            print(f"Warning: {line}", file=sys.stderr)
