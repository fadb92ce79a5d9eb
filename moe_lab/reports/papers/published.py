"""The numbers that a paper published, read from the `paper` entries of an experiment's YAML."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_lab.config.validators import build
from moe_lab.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Published:
    """A number of the paper: its cell, unit and place, and a mark where it is doubtful."""

    cell: dict[str, str]
    value: float | str
    """A text for a setting that the paper gives in words (`figure: recipe`)."""
    unit: str = "fraction"
    place: str
    mark: str | None = None
    data: str | None = None
    """For a number in the text about a figure, what the rows of the figure's CSV have in its place:
    a query and an expression of pandas, as in `n == 64 => relative_watts - 1`. The first row
    counts."""

    @property
    def fraction(self) -> float:
        """The value as in results.json, where rates are fractions."""
        value = float(self.value)
        return value / 100 if self.unit == "percent" else value

    @property
    def where(self) -> str:
        """The number as the paper prints it, its place, and the mark: "43.2%, Table 2 *"."""
        number = f"{self.value:g}"
        if self.unit == "percent":
            number += "%"
        elif self.unit != "fraction":
            number += f" {self.unit}"
        return with_mark(f"{number}, {self.place}", self.mark)


def with_mark(text: str, mark: str | None) -> str:
    """A text about a published number, followed by the number's mark."""
    return f"{text} {mark}" if mark else text


def read_published(entries: Sequence[dict[str, Any]], file: Path) -> list[Published]:
    """The numbers of the entries of a file.

    An entry may list several numbers: `cell: {task: [piqa, sciq]}, value: [0.8, 0.9]` are two.
    Raises ConfigError for a malformed entry.
    """
    numbers = []
    for i, entry in enumerate(entries):
        cell = entry.get("cell") or {}
        value = entry.get("value")
        names_by_key = {key: names for key, names in cell.items() if isinstance(names, list)}
        _check_lengths(names_by_key, value, f"{file}: paper[{i}]")

        values = value if isinstance(value, list) else [value]
        for j, number in enumerate(values):
            single_cell = dict(cell)
            for key, names in names_by_key.items():
                single_cell[key] = names[j]
            single = entry | {"cell": single_cell, "value": number}
            numbers.append(build(Published, single, f"paper[{i}]."))
    return numbers


def _check_lengths(names_by_key: Mapping[str, list[Any]], value: Any, entry: str) -> None:
    """Check that a list of numbers has one key with as many names. Raises ConfigError."""
    lengths = [len(names) for names in names_by_key.values()]
    expected = [len(value)] if isinstance(value, list) else []
    if lengths == expected:
        return
    key, names = next(iter(names_by_key.items()), ("", []))
    raise ConfigError(f"{entry}: cell.{key} lists {len(names)} names, value needs as many numbers.")
