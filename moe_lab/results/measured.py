"""Numbers with their 95% intervals: as objects, and as JSON, where the interval is `ci95`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

Interval = tuple[float, float]
"""A 95% interval: lower and upper limit."""
KEYS = {"interval": "ci95", "p_permutation": "p_randomization"}
"""Fields that files call otherwise."""


def read_interval(value: Any) -> Interval | None:
    """Two limits as JSON has them; None where one is missing."""
    return (float(value[0]), float(value[1])) if value and None not in value else None


def number(value: float | None, sign: bool = False) -> str:
    """Four decimals, two digits for a number that would be rounded to 0, four digits for a large number.

    Empty for None and NaN.
    """
    if value is None or value != value:
        return ""
    size = abs(value)
    digits = ".1e" if 0 < size < 0.00005 else ".4f" if size < 1000 else ".4g"
    return f"{value:{'+' if sign else ''}{digits}}"


def interval_text(bounds: Sequence[float] | None, sign: bool = False) -> str:
    """`[low, high]`; empty where a limit is missing."""
    low, high = (number(bound, sign) for bound in bounds or (None, None))
    return f"[{low}, {high}]" if low and high else ""


class Measured:
    """Base of frozen dataclasses of plain values that stand in JSON files with a 95% interval."""

    interval: Interval | None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """What a file has of it. Keys that the class does not know are left out."""
        names = {KEYS.get(each.name, each.name): each.name for each in fields(cls)}  # type: ignore[arg-type]
        found = {name: content[key] for key, name in names.items() if key in content}
        return cls(**found | {"interval": read_interval(content.get(KEYS["interval"]))})

    def to_json(self) -> dict[str, object]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        values["interval"] = self.interval and list(self.interval)
        return {KEYS.get(name, name): value for name, value in values.items()}


@dataclass(frozen=True)
class Value(Measured):
    """A mean or a share. None without anything that it could be of."""

    value: float | None
    interval: Interval | None = None


@dataclass(frozen=True)
class Difference(Measured):
    """A value minus that of another run."""

    difference: float | None = None
    interval: Interval | None = None


@dataclass(frozen=True)
class Spread:
    """A score over seeds. A number that too few seeds do not give is None."""

    mean: float | None = None
    std: float | None = None
    """With n - 1."""
    interval: Interval | None = None
    """Student's."""


@dataclass(frozen=True, kw_only=True)
class Paired(Measured):
    """The difference to another run on the same documents (`significance.paired`). A number may be missing."""

    n: int | None = None
    difference: float | None = None
    interval: Interval | None = None
    p_mcnemar: float | None = None
    """Of scores that are 0 or 1."""
    p_permutation: float | None = None
    """Of other scores."""
    to_right: int | None = None
    """Documents that only this run has right; None for scores that are not 0 or 1."""
    to_wrong: int | None = None
    """Documents that only the other run has right."""
    equal: bool = False
    """Whether no document differs by more than rounding. Then there is no test. Scores of 0 and 1 have theirs."""

    @property
    def changed(self) -> tuple[int, int] | None:
        """`to_right` and `to_wrong`."""
        return (
            None
            if self.to_right is None or self.to_wrong is None
            else (self.to_right, self.to_wrong)
        )


@dataclass(frozen=True)
class HeldOut(Measured):
    """The loss of a trained model on held-out rows, in nats per token."""

    loss: float
    interval: Interval | None
    """Over rows."""
    rows: int
    row_losses: Sequence[float] = ()
