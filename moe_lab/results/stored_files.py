"""Reads stored files. A file is absent, whole or damaged; the error for a damaged file names it.

A damaged file that can be written again counts as absent (`whole_mapping`) and is renamed before it is written again,
by `tidy` once the folder is held. Any other damaged file ends the run with an error.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import stat
import sys
from functools import cache, lru_cache
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import yaml

from moe_lab.config.terminal import one_line
from moe_lab.errors import ResultsError
from moe_lab.results.shapes import misfit

AGAIN = "Move it away; the same command makes it again."
SHOWN = 120
"""Characters of a reason that a message repeats."""
FILE_SUFFIXES = (".json", ".jsonl", ".yaml", ".csv", ".log", ".db", ".safetensors", ".pt")
TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}")
"""Names that `write_atomically` gives its temporary files."""


class DamagedError(ResultsError):
    """A stored file cannot be read or has unexpected content. `problem` is the message without the advice."""

    exit_code = 2
    problem: str


def damaged(path: Path, reason: object, advice: str = AGAIN) -> DamagedError:
    """The error for a damaged file: its path, the reason in one line, and what to do."""
    if isinstance(reason, OSError):
        reason = reason.strerror or reason
    if isinstance(reason, RecursionError):
        reason = "nested too deeply"
    problem = f"{one_line(path)} is damaged: {' '.join(str(reason).split())[:SHOWN]}"
    error = DamagedError(f"{problem}. {advice}")
    error.problem = problem
    return error


def opened(path: Path) -> BufferedReader:
    """A file, opened for reading. Raises OSError for what is no regular file: a FIFO or a device may never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise OSError(
            errno.EINVAL, os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "it is no regular file"
        )
    return os.fdopen(handle, "rb")


def read_bytes(path: Path) -> bytes:
    """The content of a file. Raises OSError for what is no regular file."""
    with opened(path) as file:
        return file.read()


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file by heading. Raises OSError, ValueError and csv.Error."""
    text = io.StringIO(read_bytes(path).decode("utf-8"), newline="")
    return list(csv.DictReader(text, restval=""))


def read_mapping(path: Path, advice: str = AGAIN, shape: Any = None) -> dict[str, Any] | None:
    """The mapping in a JSON or YAML file; None if there is no such file.

    Raises DamagedError, with `advice` on what to do, for what is no regular file, a file that does not parse, and for
    any other content, also one that does not have a `shape` of `shapes.py`.
    """
    parse = json.loads if path.suffix == ".json" else _yaml
    try:
        value = parse(read_bytes(path).decode("utf-8"))
        problem = None if shape is None else misfit(value, shape)
    except FileNotFoundError:
        return None
    except Exception as error:
        raise damaged(path, error, advice) from error
    if not isinstance(value, dict):
        raise damaged(path, f"a mapping is expected, not {type(value).__name__}", advice)
    if problem is not None:
        raise damaged(path, problem, advice)
    return value


def _yaml(text: str) -> Any:
    value = yaml.load(text, Loader=_YamlLoader)
    _check_keys(value)
    return value


def _check_keys(value: Any) -> None:
    """Raise ValueError for a key that is no text, which JSON does not have."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("a key is no text")
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            _check_keys(one)


class _YamlLoader(yaml.SafeLoader):
    """As SafeLoader, for values that JSON has: dates are texts."""

    yaml_implicit_resolvers: ClassVar[Any] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def whole_mapping(path: Path, shape: Any = None) -> dict[str, Any] | None:
    """As `read_mapping`, but None with a line on stderr for a damaged file: for files that can be written again."""
    try:
        return read_mapping(path, shape=shape)
    except DamagedError as error:
        warn_once(f"{error.problem}. It is not used.")
        return None


def parsed_once(path: Path) -> dict[str, Any] | None:
    """As `whole_mapping`, but an unchanged file is parsed once: for files that `write_atomically` replaces.

    A file is unchanged if its inode, size and time of change are; a replaced file has another inode. Callers share the
    mapping and do not change it.
    """
    try:
        now = path.stat()
    except OSError:
        return whole_mapping(path)
    return _parsed(path, now.st_ino, now.st_size, now.st_ctime_ns)


@lru_cache(maxsize=1024)
def _parsed(path: Path, *file: int) -> dict[str, Any] | None:
    return whole_mapping(path)


def read_lines(path: Path, advice: str = AGAIN, shape: Any = None) -> list[dict[str, Any]] | None:
    """The mappings in a JSON Lines file; None if there is no such file. Raises DamagedError as `read_mapping`."""
    try:
        with opened(path) as file:  # not splitlines: answers may hold U+2028 and the like
            lines = [json.loads(line.decode("utf-8")) for line in file]
        odd = ((i, misfit(line, shape)) for i, line in enumerate(lines, start=1) if shape is not None)
        problem = next((f"line {i}: {problem}" for i, problem in odd if problem is not None), None)
    except FileNotFoundError:
        return None
    except Exception as error:
        raise damaged(path, error, advice) from error
    if not all(isinstance(line, dict) for line in lines):
        raise damaged(path, "a line is no mapping", advice)
    if problem is not None:
        raise damaged(path, problem, advice)
    return lines


@cache
def warn_once(line: str) -> None:
    """Print a line on stderr, at most once."""
    print(line, file=sys.stderr)


def set_aside(path: Path, why: str) -> Path:
    """Rename a file or folder that will be made again, with a line on stderr. Returns the new path."""
    renamed = free_name(path)
    path.rename(renamed)
    print(f"{why}. {path.name} is kept as {renamed.name} and made again.", file=sys.stderr)
    return renamed


def free_name(path: Path) -> Path:
    """The first free name of `responses.1.old.jsonl`, `responses.2.old.jsonl` and so on, next to `path`."""
    names = (path.with_name(f"{path.stem}.{number}.old{path.suffix}") for number in count(1))
    return next(name for name in names if not name.exists())


def tidy(folder: Path) -> None:
    """Clean up a held folder after a kill or damage.

    Temporary files are removed. Damaged JSON files, and folders in the place of files, are renamed; all of them will be
    made again.
    """
    for path in folder.rglob(".*"):
        if TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink()
    for path in sorted(folder.iterdir()):
        if path.suffix not in FILE_SUFFIXES or ".old." in path.name:
            continue
        if not path.is_file():
            set_aside(path, f"{path} is {'a folder' if path.is_dir() else 'no regular file'}")
        elif path.suffix == ".json":
            try:
                read_mapping(path)
            except DamagedError as error:
                set_aside(path, error.problem)
