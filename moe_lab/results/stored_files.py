"""Reads stored files. A file is absent, whole or damaged; the error for a damaged file names it.

A damaged file that can be written again counts as absent (`whole_mapping`) and is renamed before it is written again,
by `tidy` once the folder is held. Any other damaged file ends the run with an error.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, TypeAdapter, ValidationError, create_model

from moe_lab.config.terminal import one_line
from moe_lab.errors import ResultsError

AGAIN = "Move it away; the same command makes it again."
SHOWN = 120
"""Characters of a reason that a message repeats."""
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
    reason = "nested too deeply" if isinstance(reason, RecursionError) else reason
    problem = f"{one_line(path)} is damaged: {' '.join(str(reason).split())[:SHOWN]}"
    error = DamagedError(f"{problem}. {advice}")
    error.problem = problem
    return error


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file by heading. Raises OSError, ValueError and csv.Error."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, restval=""))


def read_mapping(path: Path, advice: str = AGAIN) -> dict[str, Any] | None:
    """The mapping in a JSON or YAML file; None if there is no such file.

    Raises DamagedError, with `advice` on what to do, for a file that does not parse, and for any other content.
    """
    parse = json.loads if path.suffix == ".json" else yaml.safe_load
    try:
        value = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except Exception as error:
        raise damaged(path, error, advice) from error
    if not isinstance(value, dict):
        raise damaged(path, f"a mapping is expected, not {type(value).__name__}", advice)
    return value


def whole_mapping(path: Path) -> dict[str, Any] | None:
    """As `read_mapping`, but None with a line on stderr for a damaged file: for files that can be written again."""
    try:
        return read_mapping(path)
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


def read_lines(path: Path, advice: str = AGAIN) -> list[dict[str, Any]] | None:
    """The mappings in a JSON Lines file; None if there is no such file. Raises DamagedError as `read_mapping`."""
    try:
        with path.open("rb") as file:  # not splitlines: answers may hold U+2028 and the like
            lines = [json.loads(line.decode("utf-8")) for line in file]
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
    print(line, file=sys.stderr)


def free_name(path: Path) -> Path:
    """The first free name of `responses.1.old.jsonl`, `responses.2.old.jsonl` and so on, next to `path`."""
    names = (path.with_name(f"{path.stem}.{number}.old{path.suffix}") for number in count(1))
    return next(name for name in names if not name.exists())


def tidy(folder: Path) -> None:
    """Clean up a held folder after a kill or damage: remove temporary files, and rename damaged JSON files."""
    for path in folder.rglob(".*"):
        if TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink()
    for path in sorted(folder.glob("*.json")):
        try:
            if ".old." not in path.name:
                read_mapping(path)
        except DamagedError as error:
            renamed = path.rename(free_name(path))
            print(f"{error.problem}. {path.name} is kept as {renamed.name} and made again.", file=sys.stderr)


# Types of the content of results files
#
# A results.json may come from another machine or version. Its readers index into it freely, so that pydantic checks it
# once, as a whole. What other versions did not write is optional.

Name = Annotated[str, Field(min_length=1, max_length=1000)]
"""The name of a model, a method, a task or a run."""
Limits = Annotated[list[float | None], Field(min_length=2, max_length=2)]
"""A 95% interval."""


def _mapping(name: str, needed: dict[str, Any], optional: dict[str, Any]) -> Any:
    """The type of a mapping with these keys. It may have others, too."""
    fields: dict[str, Any] = {key: (kind, ...) for key, kind in needed.items()}
    fields |= {key: (kind, None) for key, kind in optional.items()}
    return create_model(name, **fields)


def _each(kind: Any) -> Any:
    """The type of a mapping from names to values of a type."""
    return dict[str, kind]  # type: ignore[valid-type]


_numbers = dict.fromkeys(("difference", "p_mcnemar", "p_randomization"), float | None)
_counts = dict.fromkeys(("n", "to_right", "to_wrong"), int | None)
_paired = _each(_each(_mapping("Paired", {}, {**_counts, **_numbers, "ci95": Limits | None})))
_compared = _mapping("Compared", {"run_id": Name}, {"results": _each(_each(Any)), "paired": _paired})
_named = _mapping("Named", {"name": Name}, {"commit": str | None, "config": _each(Any)})
_block = _mapping(
    "Block",
    {
        "run_id": Name,
        "model": _named,
        "method": _named,
        "task": _mapping("Task", {"name": Name | list[Name], "tasks": list[Name]}, {"metric": str | None}),
        "versions": _each(Any),
        "samples": _each(list[int]),
    },
    {
        "overrides": list[str],
        "seed": int | None,
        "intervals": _each(_each(Limits | None)),
        "baseline": _compared | None,
        "paired": _paired,
        "compared": _each(_compared),
        "cost": _each(Any),
        "tuning": _mapping("Tuning", {}, {"study": str | None, "model": str}),
        "judges": _each(_mapping("Judge", {"metrics": list[str]}, {})),
    },
)
_needed = {"results": _each(_each(Any))}
_optional = {
    "configs": _each(_each(Any)),
    "config": _each(Any) | None,
    "groups": _each(Any),
    "group_subtasks": _each(list[str]),
    "higher_is_better": _each(_each(Any)),
}
LmEvalResults = _mapping("LmEvalResults", _needed, _optional)
"""What lm-eval writes into a results file."""
Results = _mapping("Results", _needed | {"moe_lab": _block}, _optional)
"""A results.json of this package."""


def misfit(value: Any, shape: Any) -> str | None:
    """The first place where a value does not have a type of this module, in words; None if it has it."""
    try:
        _adapter(shape).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        return f"{place}: {first['msg']}"
    return None


def typed(kind: Any, value: Mapping[str, Any]) -> Any:
    """The mapping as an instance of a dataclass, its fields too. Keys that it does not have are left out.

    Raises ValueError.
    """
    return _adapter(kind).validate_python(value)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def leaves(results: Mapping[str, Any], samples: Any, name: str) -> list[str]:
    """A task itself; the tasks of a group, and of the groups in it."""
    children = results.get("group_subtasks", {}).get(name, [])
    if name in samples or not children:
        return [name]
    return [task for child in children for task in leaves(results, samples, child)]
