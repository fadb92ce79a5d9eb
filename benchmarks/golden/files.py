"""The files of a recorded command, read for comparison: texts without what varies, and the values
of data files."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.golden.varying import FILES, KEYS, SOMETIMES, normalized

INPUTS = "files/inputs/"
"""What the golden run gives to each command."""
ID = re.compile(r".*?-[0-9a-f]{8}(?![0-9a-z])")
"""A name with an id, as of the folder of a run, a study, a summary or a page:
`tiny-roe-toy_math-c29e0022`."""
TEXTS = {".txt", ".html", ".md", ".svg", ".log", ".tex", ".py", ".jinja"}
DATA = {".json", ".jsonl", ".yaml", ".csv"}
TEXT_URI = re.compile(
    r"data:(?:text/[a-z-]+;charset=utf-8|image/svg\+xml);base64,([A-Za-z0-9+/=]+)"
)
"""The CSV, the LaTeX and the pictures of a page."""


class Recording:
    """One command of a recording."""

    def __init__(self, folder: Path):
        self.folder = folder
        command = json.loads((folder / "command.json").read_text("utf-8"))
        self.line: str = command["line"]
        self.exit_code: int = command["exit_code"]
        self.places: dict[str, str] = command["places"]
        self.paths = set()
        for file in folder.rglob("*"):
            path = file.relative_to(folder).as_posix()
            if file.is_file() and path != "command.json" and not path.startswith(INPUTS):
                self.paths.add(path)
        self.ids = set()
        for path in self.paths:
            self.ids |= ids_in(path)

    def paths_without(self, ids: set[str]) -> set[str]:
        """The paths that have none of these ids."""
        return {path for path in self.paths if not ids_in(path) & ids}

    def text(self, path: str) -> str:
        """A text without what varies. Pages and pictures have a line for each tag, so that a
        difference is short."""
        text = normalized(with_decoded((self.folder / path).read_text("utf-8")), self.places)
        if path.endswith((".html", ".svg")):
            text = text.replace(">", ">\n").replace("},", "},\n")
        return text

    def values(self, path: str) -> Any:
        """The content of a data file; a digest of one that is neither text nor data."""
        file = self.folder / path
        if file.name in FILES:
            return None
        if file.suffix == ".safetensors":
            return tensors_in(file)
        if file.suffix in DATA:
            return self._without_varying(parsed(file.read_text("utf-8"), file.suffix))
        return hashlib.sha256(file.read_bytes()).hexdigest()

    def _without_varying(self, value: Any, parent: str = "") -> Any:
        """The value under the key `parent`, with null for what varies: that its key is there is
        compared."""
        if isinstance(value, dict):
            kept_content: dict[str, Any] = {}
            for key, item in value.items():
                if key.rpartition("/")[2] in SOMETIMES:
                    continue
                if varies(key, parent):
                    kept_content[key] = None
                else:
                    kept_content[key] = self._without_varying(item, key)
            return kept_content
        if isinstance(value, list):
            return [self._without_varying(item, parent) for item in value]
        if isinstance(value, str):
            return normalized(value, self.places)
        return value


def varies(key: str, parent: str) -> bool:
    """Whether the value of a key below `parent` is one of KEYS. W&B's keys are whole paths:
    `cost/wall_seconds`."""
    whole = f"{parent}/{key}"
    last_two = "/".join(whole.split("/")[-2:])
    return last_two in KEYS or last_two.rpartition("/")[2] in KEYS


def is_text(path: str) -> bool:
    return Path(path).suffix in TEXTS


def ids_in(path: str) -> set[str]:
    ids = set()
    for part in path.split("/"):
        match = ID.match(part)
        if match:
            ids.add(match.group())
    return ids


def with_decoded(page: str) -> str:
    """The page with its text URIs as texts."""
    return TEXT_URI.sub(lambda match: b64decode(match.group(1)).decode("utf-8"), page)


def parsed(text: str, suffix: str) -> Any:
    if suffix == ".json":
        return json.loads(text)
    if suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    if suffix == ".yaml":
        return yaml.safe_load(text)
    return [
        {column: number_or_text(cell) for column, cell in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]


def number_or_text(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def tensors_in(file: Path) -> dict[str, Any]:
    """By name: type, shape and numbers."""
    tensors = {}
    for name, tensor in load_file(file).items():
        tensors[name] = {
            "dtype": str(tensor.dtype),
            "shape": list(tensor.shape),
            "numbers": tensor.double(),
        }
    return tensors


def differing_values(before: Any, after: Any, rtol: float, place: str = "") -> Iterator[str]:
    """A line for each place where two values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys(), key=str):
            if key not in after:
                yield f"{place}/{key}: only before"
            elif key not in before:
                yield f"{place}/{key}: only after"
            else:
                yield from differing_values(before[key], after[key], rtol, f"{place}/{key}")
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{place}: {len(before)} items before, {len(after)} after"
        for number, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from differing_values(old, new, rtol, f"{place}/{number}")
    elif isinstance(before, Tensor) and isinstance(after, Tensor):
        # Tensors of other shapes have a line already, for the key `shape`.
        if before.shape == after.shape and not torch.allclose(
            before, after, rtol, atol=0, equal_nan=True
        ):
            yield f"{place}: differ by up to {(before - after).abs().max():.3g}"
    elif not equal(before, after, rtol):
        yield f"{place}: {before} before, {after} after"


def equal(before: Any, after: Any, rtol: float) -> bool:
    """Whether two values are the same, numbers within the tolerance."""
    if is_number(before) and is_number(after):
        both_nan = math.isnan(before) and math.isnan(after)
        return both_nan or math.isclose(before, after, rel_tol=rtol, abs_tol=0)
    return type(before) is type(after) and bool(before == after)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
