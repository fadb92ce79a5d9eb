"""Checks of single values of a configuration, worded alike for all keys. None is a value that was left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from moe_lab.errors import ConfigError


def one_of(key: str, value: str | None, choices: Sequence[str]) -> None:
    """Raise ConfigError for a value that is none of the choices, with the closest one."""
    if value is not None and value not in choices:
        raise ConfigError(
            f"{key}={value} is unknown. Choices: {', '.join(choices)}.{did_you_mean(value, choices)}"
        )


def at_least(key: str, value: float | None, least: float) -> None:
    """Raise ConfigError for a value below `least`, or one that is not finite."""
    if value is not None and not least <= value < math.inf:
        raise ConfigError(f"{key}={value}: must be a number that is at least {least}.")


def above_zero(key: str, value: float | None) -> None:
    """Raise ConfigError for a value that is not above 0, or not finite."""
    if value is not None and not 0 < value < math.inf:
        raise ConfigError(f"{key}={value}: must be a number above 0.")


def did_you_mean(word: str, choices: Any) -> str:
    """Give " Did you mean 'x'?" for the closest choice, or nothing where none is close."""
    from difflib import get_close_matches

    matches = get_close_matches(str(word), [str(choice) for choice in choices], n=1, cutoff=0.5)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def unknown_option(group: str, option: str, options: Sequence[str]) -> str:
    """The message for an option that a group does not have."""
    return f"Unknown {group} {option!r}.{did_you_mean(option, options)}\nChoices: {', '.join(options)}."
