"""Numbers with their 95% intervals, and how they are printed. In files the interval is `ci95`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

from moe_lab.results.stored import Interval, Stored, StoredInterval

Ci95 = Annotated[StoredInterval, Field(validation_alias="ci95", serialization_alias="ci95")]


def number(value: float | None, sign: bool = False) -> str:
    """The number as text: 0.1235; 1.2e-05 where four decimals would show 0; 1.235e+04 above 1,000.

    Empty for None and NaN. With `sign` a positive number begins with "+".
    """
    if value is None or math.isnan(value):
        return ""
    size = abs(value)
    if 0 < size < 0.00005:
        digits = ".1e"
    elif size < 1000:
        digits = ".4f"
    else:
        digits = ".4g"
    plus = "+" if sign else ""
    return f"{value:{plus}{digits}}"


def interval_text(bounds: Sequence[float] | None, sign: bool = False) -> str:
    """`[low, high]`; empty for None, and where a limit is None or NaN."""
    if not bounds:
        return ""
    low, high = bounds
    low_text = number(low, sign)
    high_text = number(high, sign)
    if not low_text or not high_text:
        return ""
    return f"[{low_text}, {high_text}]"


class Measured(Stored):
    """Base of measured numbers. Keys that the class does not know are left out."""

    model_config = ConfigDict(extra="ignore")


class Value(Measured):
    """A mean or a share; None where there is nothing to average."""

    value: float | None = None
    interval: Ci95 = None


class Difference(Measured):
    """A value minus that of another run."""

    difference: float | None = None
    interval: Ci95 = None


@dataclass(frozen=True)
class Spread:
    """A score over seeds. `std` and `interval` are None for one seed."""

    mean: float | None = None
    std: float | None = None
    """With n - 1."""
    interval: Interval | None = None
    """Student's."""


class Paired(Measured):
    """The difference to another run on the same documents (`paired.paired`). A number may be
    missing."""

    n: int | None = None
    difference: float | None = None
    interval: Ci95 = None
    p_mcnemar: float | None = None
    """Of scores that are 0 or 1."""
    p_permutation: Annotated[
        float | None,
        Field(validation_alias="p_randomization", serialization_alias="p_randomization"),
    ] = None
    """Of other scores."""
    to_right: int | None = None
    """Documents that only this run has right; None for scores that are not 0 or 1."""
    to_wrong: int | None = None
    """Documents that only the other run has right."""
    equal: bool = False
    """Whether no document differs by more than rounding. Then there is no test. Scores of 0 and 1
    have theirs."""

    @property
    def changed(self) -> tuple[int, int] | None:
        """`to_right` and `to_wrong`; None for scores that are not 0 or 1."""
        if self.to_right is None or self.to_wrong is None:
            return None
        return self.to_right, self.to_wrong


class HeldOut(Measured):
    """The loss of a trained model on held-out rows, in nats per token. A loss that is no number is
    None."""

    loss: float | None
    interval: Ci95
    """Over rows."""
    rows: int
    row_losses: list[float | None] = Field([])
