"""`flips.jsonl` of a run: the routing where an answer that turned right or wrong parts from the untouched model's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moe_lab.results.atomic import write_atomically
from moe_lab.results.shapes import FLIP, ROUTED_FLIP, misfit
from moe_lab.results.stored_files import damaged, read_lines

FILE = "flips.jsonl"
DIGITS = 4
"""Significant digits of numbers."""
MOST_ROUTED = 500
"""Flips of a run with their routing. The others are listed without it."""


def write_flips(folder: Path, header: dict[str, Any], flips: Sequence[dict[str, Any]]) -> None:
    """Write the flips behind a line that says whose they are. Raises ResultsError."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in [{"header": header}, *flips])
    write_atomically(folder / FILE, text)


def read_flips(folder: Path, header: dict[str, Any] | None = None) -> list[dict[str, Any]] | None:
    """The flips; None without the file, or where its header is another one. Raises DamagedError."""
    lines = read_lines(folder / FILE, "The run's command with rerun=true makes it again.")
    if lines is None:
        return None
    if not lines or "header" not in lines[0]:
        raise damaged(folder / FILE, "it has no header")
    for flip in lines[1:]:
        if (problem := misfit(flip, ROUTED_FLIP if "after" in flip else FLIP)) is not None:
            raise damaged(folder / FILE, problem)
    return lines[1:] if header in (None, lines[0]["header"]) else None


def rounded(layers: Sequence[dict[int, float]]) -> list[list[list[float]]]:
    """By MoE layer: [expert, number] pairs."""
    return [[[expert, float(f"{number:.{DIGITS}g}")] for expert, number in layer.items()] for layer in layers]
