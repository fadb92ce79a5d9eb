"""stdout and stderr that never end a command: a run that is computed and stored ends with its own
exit code.

A terminal may lack a character (`PYTHONIOENCODING=ascii`), a reader may end before the command (`|
head -1`), and a stream may be closed from the beginning (`>&-`, `2>&-`).
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import UnsupportedOperation
from typing import Any, TextIO

ASCII = {
    "─": "-",
    "×": "x",
    "–": "-",
    "—": "-",
    "…": "...",
    "→": "->",
    "±": "+/-",
    "’": "'",
    "“": '"',
    "”": '"',
}
"""What is printed where an encoding lacks a character; another character is printed as its
escape."""


@contextmanager
def lasting_streams() -> Iterator[None]:
    """Inside, writing to `sys.stdout` and `sys.stderr` raises neither UnicodeEncodeError nor
    BrokenPipeError.

    A stream that is closed takes text as `os.devnull` does.
    """
    before = (sys.stdout, sys.stderr)
    streams: Any = (_Lasting(_opened(sys.stdout, 1)), _Lasting(_opened(sys.stderr, 2)))
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        for stream in streams:
            stream.flush()
        if sys.stdout is streams[0]:
            sys.stdout = before[0]
        if sys.stderr is streams[1]:
            sys.stderr = before[1]


def _opened(stream: TextIO | None, number: int) -> TextIO:
    """The stream, or one to nowhere for a stream that was closed when Python started.

    The descriptor `number` is pointed to nowhere: otherwise the next file that is opened would get
    it, and with it what libraries print.
    """
    if stream is not None:
        return stream
    try:
        os.fstat(number)
    except OSError:
        _point_to_nowhere(number)
    return _nowhere()


def _nowhere() -> TextIO:
    """A stream whose text is dropped."""
    return open(os.devnull, "w", encoding="utf-8")


def _point_to_nowhere(number: int) -> None:
    """Make a file descriptor write to `os.devnull`."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)


class _Lasting:
    """A stream whose reader may end, and whose encoding may lack characters."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, in characters that the encoding has. A reader that has ended raises
        nothing."""
        encoding = getattr(self._stream, "encoding", None)
        if encoding is not None:
            text = in_encoding(text, encoding, getattr(self._stream, "errors", None))
        try:
            self._stream.write(text)
        except BrokenPipeError:
            self._lose()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream. A reader that has ended raises nothing."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._lose()

    def _lose(self) -> None:
        """Send what is written from now on, and what the stream still holds, to nowhere."""
        try:
            _point_to_nowhere(self._stream.fileno())
        except UnsupportedOperation:
            self._stream = _nowhere()


def in_encoding(text: str, encoding: str, errors: str | None = None) -> str:
    r"""The text with characters that the encoding has: `x` for a times sign, `\xfc` for another
    letter.

    `errors`: of the stream; with `surrogateescape` it writes the bytes of a file's name as they
        are.
    """
    kept = "surrogateescape" if errors == "surrogateescape" else "strict"
    try:
        text.encode(encoding, kept)
        return text
    except UnicodeEncodeError:
        pass
    characters = []
    for character in text:
        try:
            character.encode(encoding, kept)
        except UnicodeEncodeError:
            escape = character.encode("ascii", "backslashreplace").decode("ascii")
            character = ASCII.get(character, escape)
        characters.append(character)
    return "".join(characters)
