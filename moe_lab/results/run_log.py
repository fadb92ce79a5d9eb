"""run.log: a logging handler that survives a full disk."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from moe_lab.config.terminal import without_passwords
from moe_lab.errors import LeaseLostError
from moe_lab.results.atomic import writing
from moe_lab.results.lock import check_lease


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
