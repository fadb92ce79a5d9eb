"""The handlers of a run's log records: its own log file, and warnings on stderr."""

import logging
from contextlib import suppress
from pathlib import Path

from moe_lab.config.terminal import print_message, without_passwords
from moe_lab.results.atomic import writing


class RunLog(logging.FileHandler):
    """Appends every record to a file, without passwords. Raises ResultsError if the file cannot be
    opened."""

    def __init__(self, path: Path):
        with writing(path):
            super().__init__(path, encoding="utf-8", errors="backslashreplace")

    def format(self, record: logging.LogRecord) -> str:
        """The record's text without passwords in URLs."""
        return without_passwords(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:
        """Do nothing: if the disk is full, the log of answers raises an error, which ends the
        run."""

    def close(self) -> None:
        """Close the file. A full disk raises no error."""
        with suppress(OSError):
            super().close()


class WarningsOnce(logging.Handler):
    """Prints the first line of each warning on stderr, once.

    lm-eval's warnings name the document in further lines.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record if it is a warning that was not printed before."""
        line = record.getMessage().partition("\n")[0]
        if record.levelno == logging.WARNING and line not in self._printed:
            self._printed.add(line)
            print_message(f"Warning: {line}")
