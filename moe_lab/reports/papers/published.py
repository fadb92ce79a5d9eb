"""The numbers that a paper published, read from the `paper` entries of an experiment's YAML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_lab.config.validators import build
from moe_lab.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Published:
    """A number of the paper: its cell, unit and place, and a mark where it is doubtful."""

    cell: dict[str, str]
    value: float
    unit: str = "fraction"
    place: str
    mark: str | None = None

    @property
    def fraction(self) -> float:
        """The value as in results.json, where rates are fractions."""
        return self.value / 100 if self.unit == "percent" else self.value


def read_published(entries: Sequence[dict[str, Any]], file: Path) -> list[Published]:
    """One `Published` for each number of the entries of a file. Raises ConfigError for a malformed entry."""
    return [
        build(Published, each, f"paper[{i}].")
        for i, entry in enumerate(entries)
        for each in _single_numbers(entry, f"{file}: paper[{i}]")
    ]


def _single_numbers(entry: dict[str, Any], place: str) -> list[dict[str, Any]]:
    """An entry of `paper` as one per number: a list in its cell goes with a list of values."""
    cell = entry.get("cell", {})
    listed = [key for key, value in cell.items() if isinstance(value, list)]
    if not listed:
        return [entry]
    names, values = cell[listed[0]], entry.get("value")
    if len(listed) > 1 or not isinstance(values, list) or len(values) != len(names):
        raise ConfigError(f"{place}: cell.{listed[0]} lists {len(names)} names, value needs as many numbers.")
    return [
        {**entry, "cell": {**cell, listed[0]: name}, "value": value}
        for name, value in zip(names, values, strict=True)
    ]
