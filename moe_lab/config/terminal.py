"""The command's stdout and stderr: safe for control characters in foreign text, and for readers that end early.

Names of models and tasks, logs and errors of libraries may have any characters. Escape sequences in them would move the
cursor, hide lines or forge them.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 without the newline, DEL, C1, characters that change the direction of text, and surrogates."""
OF_BARS = re.compile("[\n]*(\x1b\\[A)*")
"""What tqdm writes to move between bars."""
USER = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^/\s]+@")
"""A URL up to the end of its user and password, which may have an @ of its own."""


def shown(text: str) -> str:
    r"""The text with its control characters as escapes, such as `\x1b`; newlines stay."""
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def one_line(text: object) -> str:
    r"""As `shown`, with newlines as `\n`: for a name, which must not begin a line of its own."""
    return shown(str(text)).replace("\n", "\\n")


def without_passwords(text: str) -> str:
    """The text with `...` instead of user and password in URLs."""
    return USER.sub(r"\1...@", text)


@contextmanager
def shown_output(quiet: bool = False) -> Iterator[None]:
    """Within this, stdout and stderr are `ShownStream`s, or if `quiet` take nothing."""
    before = sys.stdout, sys.stderr
    streams = [
        one if isinstance(one, ShownStream) and not quiet else ShownStream(one, quiet) for one in before
    ]
    sys.stdout, sys.stderr = cast(list[TextIO], streams)
    try:
        yield
    finally:
        for stream in streams:
            stream.flush()
        sys.stdout, sys.stderr = before


class ShownStream:
    """A stream that writes `shown` text without passwords. It drops what a reader that has ended no longer takes."""

    def __init__(self, stream: Any, quiet: bool = False):
        self._stream, self._quiet = stream, quiet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._reader_may_end():
            self._stream.write("" if self._quiet else self._for_terminal(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._reader_may_end():
            self._stream.flush()

    def _for_terminal(self, text: str) -> str:
        if not self._stream.isatty():
            return shown(without_passwords(text))
        # bars, which are drawn on a terminal only, return to the beginning of their line
        if OF_BARS.fullmatch(text):
            return text
        start = "\r" if text.startswith("\r") else ""
        return start + shown(without_passwords(text.removeprefix(start)))

    @contextmanager
    def _reader_may_end(self) -> Iterator[None]:
        """`| head` ends before the command does. The stored results must not depend on that."""
        try:
            yield
        except BrokenPipeError:
            ended, self._stream = self._stream, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
            with suppress(OSError):  # it has no file descriptor
                os.dup2(self._stream.fileno(), ended.fileno())  # what it still buffers is dropped, too
