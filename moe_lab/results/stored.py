"""Reading what is stored: a file is absent, whole or damaged, and a damaged one is named.

A damaged file that can be made again counts as absent (`whole_mapping`), and is set aside by who makes it again: `tidy`
does so once a folder is held. Any other one ends the run with one message.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from moe_lab.errors import ResultsError

AGAIN = "Move it away; the same command makes it again."
SHOWN = 120
"""Characters of a reason that a message repeats."""
FILE_SUFFIXES = (".json", ".jsonl", ".yaml", ".csv", ".log", ".db", ".safetensors", ".pt")
TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}")
"""Names that `write_atomically` gives its temporary files."""


class DamagedError(ResultsError):
    """A stored file cannot be read, or does not hold what such a file holds. `told` is the message less the advice."""

    exit_code = 2
    told: str


def damaged(path: Path, reason: object, advice: str = AGAIN) -> DamagedError:
    """The error for a file: its path, the reason in one line, and what to do."""
    if isinstance(reason, OSError):
        reason = reason.strerror or reason
    if isinstance(reason, RecursionError):
        reason = "nested too deeply"
    said = " ".join(str(reason).split())[:SHOWN]
    error = DamagedError(f"{path} is damaged: {said}. {advice}")
    error.told = f"{path} is damaged: {said}"
    return error


def read_mapping(path: Path, advice: str = AGAIN) -> dict[str, Any] | None:
    """The mapping in a JSON or YAML file; None where there is no such file.

    Raises DamagedError for a folder, for what does not parse and for what is no mapping. `advice` says what to do then.
    """
    parse: Callable[[str], Any] = json.loads if path.suffix == ".json" else yaml.safe_load
    try:
        value = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise damaged(path, error, advice) from error
    if not isinstance(value, dict):
        raise damaged(path, f"a mapping is expected, not {type(value).__name__}", advice)
    return value


def whole_mapping(path: Path) -> dict[str, Any] | None:
    """As `read_mapping`; None also where the file is damaged, for one that is made again: a line on stderr says so."""
    try:
        return read_mapping(path)
    except DamagedError as error:
        tell_once(f"{error.told}. It is not used.")
        return None


def parsed_once(path: Path) -> dict[str, Any] | None:
    """As `whole_mapping`, without parsing the same file again: for files that are only replaced (`write_atomically`).

    It is the same file if inode, size and time of change are the same: the inode of a file is another one than that
    of the file that it replaces. Callers share the mapping and do not change it.
    """
    try:
        found = path.stat()
    except OSError:
        return whole_mapping(path)
    return _parsed(path, found.st_ino, found.st_size, found.st_ctime_ns)


@lru_cache(maxsize=1024)
def _parsed(path: Path, *file: int) -> dict[str, Any] | None:
    return whole_mapping(path)


def read_lines(path: Path, advice: str = AGAIN) -> list[dict[str, Any]] | None:
    """The mappings in a JSON Lines file; None where there is no such file. Raises DamagedError as `read_mapping`."""
    try:
        with path.open(encoding="utf-8") as file:  # not splitlines: answers may hold U+2028 and the like
            lines = [json.loads(line) for line in file]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, error, advice) from error
    if not all(isinstance(line, dict) for line in lines):
        raise damaged(path, "a line is no mapping", advice)
    return lines


@cache
def tell_once(line: str) -> None:
    """Print a line on stderr, the same one once."""
    print(line, file=sys.stderr)


def set_aside(path: Path, why: str) -> Path:
    """Rename a file or folder that is made again, and say so on stderr. Returns the new path."""
    kept = free_name(path)
    path.rename(kept)
    print(f"{why}. {path.name} is kept as {kept.name} and made again.", file=sys.stderr)
    return kept


def free_name(path: Path) -> Path:
    """`responses.1.old.jsonl` and so on, beside `path`."""
    names = (path.with_name(f"{path.stem}.{number}.old{path.suffix}") for number in count(1))
    return next(name for name in names if not name.exists())


def tidy(folder: Path) -> None:
    """Clear a folder, which is held, of what a kill or damage left in it.

    Temporary files are removed. Damaged JSON files, and folders in the place of files, are set aside: all of them are
    made again.
    """
    for path in folder.rglob(".*"):
        if TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink()
    for path in sorted(folder.iterdir()):
        if path.suffix not in FILE_SUFFIXES or ".old." in path.name:
            continue
        if path.is_dir():
            set_aside(path, f"{path} is a folder")
        elif path.suffix == ".json":
            try:
                read_mapping(path)
            except DamagedError as error:
                set_aside(path, error.told)
