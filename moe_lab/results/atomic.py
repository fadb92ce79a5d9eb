"""Atomic writes: a file is absent or complete."""

import json
import math
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from moe_lab.errors import ResultsError

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


_SAFETENSORS = re.compile("Error while serializing: I/O error: (.*)")
"""The message of a SafetensorError for a file that cannot be written, with the reason."""
_TORCH = re.compile("inline_container|iostream error")
"""The message of a RuntimeError of `torch.save` for a file that cannot be written. It does not say
why."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failed write (full disk, no permission) into a ResultsError that names the path.

    A write of tensors, too: safetensors and torch raise errors of their own.
    """
    try:
        yield
    except Exception as error:
        reason = _why_not_written(error)
        if reason is None:
            raise
        raise ResultsError(
            f"{path} could not be written: {reason}. What was finished is kept."
        ) from error


def _why_not_written(error: Exception) -> str | None:
    """The reason of a failed write; None for any other error."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    safetensors_failure = _SAFETENSORS.match(str(error))
    if safetensors_failure is not None:
        return safetensors_failure[1]
    if isinstance(error, RuntimeError) and _TORCH.search(str(error)):
        if isinstance(error.__context__, OSError):
            return _why_not_written(error.__context__)
        return "torch.save failed, perhaps because the disk is full"
    return None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file atomically: write a temporary file next to it, fsync, rename. Raises
    ResultsError."""
    with writing(path):
        name = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        # as open() makes it, so that the umask decides who may read; mkstemp's files are the
        # owner's alone
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            if isinstance(content, str):
                # a lone surrogate, which data may contain, becomes its JSON escape
                content = content.encode("utf-8", "backslashreplace")
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(name)
            raise


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file atomically into a folder that is made where it is missing; returns the path.
    Raises ResultsError."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as CSV. None, NaN and missing keys are empty fields."""
    from pandas import DataFrame

    return str(DataFrame(list(rows), dtype=object).to_csv(index=False))


def write_rows(rows: Sequence[Mapping[str, object]], path: Path) -> Path:
    """Write rows as CSV; returns the path. Raises ResultsError."""
    return write_file(path, csv_text(rows))


def obey_umask(folder: Path) -> None:
    """Give the weights in a folder the mode of any other file: safetensors makes files that are
    their owner's alone."""
    probe = folder / f".mode.{secrets.token_hex(4)}"
    probe.touch()
    mode = probe.stat().st_mode & 0o777
    probe.unlink()
    for file in folder.rglob("*.safetensors"):
        file.chmod(mode)


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically; NaN and infinities become null."""
    write_atomically(path, json_text(content))


def json_text(content: Any) -> str:
    """`plain` content as the text of a file."""
    return json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def json_line(content: Any) -> str:
    """`plain` content as a line of a JSON Lines file. NaN and infinities, which are no JSON, become
    null."""
    return json.dumps(plain(content), ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """The value as plain JSON: NaN and infinities become null, numpy scalars numbers, sets and
    tuples lists.

    An object with `to_json` becomes what that returns, and a function its name. Any other object
    becomes its string without memory addresses: equal runs give equal text.
    """
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "to_json"):
        return plain(value.to_json())
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return ADDRESS.sub("", str(value))
