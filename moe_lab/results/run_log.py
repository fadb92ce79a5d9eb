"""run.log: a handler of Python's logging that a full disk does not stop."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from moe_lab.results.atomic import writing


class RunLog(logging.Handler):
    """Appends every record to a file. Where that fails, one line on stderr says so, and no more is written.

    Raises ResultsError where the file cannot be opened.
    """

    def __init__(self, path: Path):
        super().__init__()
        self.path = path
        self._failed = False
        with writing(path):
            # unbuffered: what could not be written is not tried again when the file is closed
            self._file = path.open("ab", buffering=0)

    def emit(self, record: logging.LogRecord) -> None:
        if self._failed:
            return
        try:
            self._file.write((self.format(record) + "\n").encode("utf-8", "backslashreplace"))
        except OSError as error:
            self._failed = True
            print(f"{self.path} could not be written: {error.strerror}. The run goes on.", file=sys.stderr)

    def close(self) -> None:
        self._file.close()
        super().close()
