"""The base of the typed parts of JSON files. A part is written and read by the same fields."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

Interval = tuple[float, float]
"""A 95% interval: lower and upper limit."""
Name = Annotated[str, Field(min_length=1)]


class Stored(BaseModel):
    """A part of a stored file. It may have further keys, which are kept."""

    model_config = ConfigDict(
        extra="allow", frozen=True, strict=True, validate_by_name=True, validate_by_alias=True
    )

    def to_json(self) -> dict[str, Any]:
        """The part as it stands in the file (`moe_lab.results.atomic.plain`)."""
        return self.model_dump(by_alias=True)


def _whole_interval(limits: Any) -> Any:
    """The limits, or None where one is missing."""
    if isinstance(limits, list | tuple) and None in limits:
        return None
    return limits


def _as_list(limits: Interval | None) -> list[float] | None:
    """The limits as JSON has them; None without an interval."""
    return None if limits is None else list(limits)


StoredInterval = Annotated[
    Annotated[Interval, Field(strict=False)] | None,
    BeforeValidator(_whole_interval),
    PlainSerializer(_as_list),
]
"""An interval as JSON has it: a list of two limits. None where one is missing."""
