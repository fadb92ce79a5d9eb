"""Reads stored files. A file is absent, whole or damaged; the error for a damaged file names it.

A damaged file that can be written again counts as absent (`whole_mapping`). Any other damaged file
ends the run with an error.
"""

import gzip
import json
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from moe_lab.config.terminal import one_line, print_message
from moe_lab.errors import ResultsError

AGAIN = "Move it away; the same command makes it again."
SHOWN = 120
"""Characters of a reason that a message repeats."""
TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}")
"""Names that `write_atomically` gives its temporary files."""


class DamagedError(ResultsError):
    """A stored file cannot be read or has unexpected content. `problem` is the message without the
    advice."""

    exit_code = 2
    problem: str


def damaged(path: Path, reason: object, advice: str = AGAIN) -> DamagedError:
    """The error for a damaged file: its path, the reason in one line, and what to do."""
    if isinstance(reason, OSError):
        reason = reason.strerror or reason
    problem = f"{one_line(path)} is damaged: {' '.join(str(reason).split())[:SHOWN]}"
    error = DamagedError(f"{problem}. {advice}")
    error.problem = problem
    return error


def read_mapping(path: Path, advice: str = AGAIN) -> dict[str, Any] | None:
    """The mapping in a JSON or YAML file; None if there is no such file.

    Raises DamagedError, with `advice` on what to do, for a file that does not parse, and for any
    other content.
    """
    parse = json.loads if path.suffix == ".json" else yaml.safe_load
    try:
        value = parse(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return None
    except Exception as error:
        raise damaged(path, error, advice) from error
    if not isinstance(value, dict):
        raise damaged(path, f"a mapping is expected, not {type(value).__name__}", advice)
    return value


def whole_mapping(path: Path) -> dict[str, Any] | None:
    """The mapping in a JSON or YAML file; None if there is no such file, or if it is damaged.

    For files that can be written again: a message on stderr names a damaged one, once.
    """
    try:
        return read_mapping(path)
    except DamagedError as error:
        warn_once(f"{error.problem}. It is not used.")
        return None


def content_of_run(
    path: Path, *, run_id: str, commit: str | None, schema_version: int
) -> dict[str, Any] | None:
    """The mapping of a file that a run wrote next to its results; None if it is of another run, hub
    commit or version of the file."""
    content = whole_mapping(path)
    if content is None:
        return None
    expected = {"run_id": run_id, "commit": commit, "schema_version": schema_version}
    for key, value in expected.items():
        if content.get(key) != value:
            return None
    return content


def parsed_once(path: Path) -> dict[str, Any] | None:
    """As `whole_mapping`, but an unchanged file is parsed once: for files that `write_atomically`
    replaces.

    A file is unchanged if its inode, size and time of change are; a replaced file has another
    inode. Callers share the mapping and do not change it.
    """
    try:
        now = path.stat()
    except OSError:
        return whole_mapping(path)
    return _parsed(path, now.st_ino, now.st_size, now.st_ctime_ns)


@lru_cache(maxsize=1024)
def _parsed(path: Path, *file: int) -> dict[str, Any] | None:
    """As `whole_mapping`. `file` identifies the file's content: inode, size and time of change."""
    return whole_mapping(path)


def read_lines(path: Path, advice: str = AGAIN) -> list[dict[str, Any]] | None:
    """The mappings in a JSON Lines file, which may be compressed by gzip; None if there is no such
    file.

    Blank lines and a byte order mark are left out. Raises DamagedError as `read_mapping`.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    lines = []
    try:
        with opened(path, "rb") as file:  # not splitlines: answers may hold U+2028 and the like
            for line in file:
                text = line.decode("utf-8-sig").strip()
                if text:
                    lines.append(json.loads(text))
    except FileNotFoundError:
        return None
    except Exception as error:
        raise damaged(path, error, advice) from error
    if not all(isinstance(line, dict) for line in lines):
        raise damaged(path, "a line is no mapping", advice)
    return lines


@cache
def warn_once(line: str) -> None:
    """Print a line on stderr, at most once."""
    print_message(line)


def tidy(folder: Path) -> None:
    """Remove the temporary files that a killed process left in a held folder."""
    for path in folder.rglob(".*"):
        if TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink()


def typed(kind: Any, value: Mapping[str, Any]) -> Any:
    """The mapping as an instance of a dataclass, its fields too. Keys that it does not have are
    left out.

    Raises ValueError.
    """
    return _adapter(kind).validate_python(value)


_adapter = cache(TypeAdapter)
