"""Plain values to typed dataclasses: unknown keys, values of another type and impossible values are ConfigErrors.

`build` checks keys and types against a dataclass. Its `__post_init__` checks values: `check_limits` those that their
annotations limit, `one_of`, `at_least` and `above_zero` others. All take None for a value that is not set.
"""

import math
import os
import sys
import types
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from moe_lab.errors import ConfigError

hints_of = cache(get_type_hints)
Owners = Callable[[str], list[str]]
"""The methods that have a key."""


def build(cls: type, values: dict[str, Any], prefix: str, owners: Owners = lambda key: []) -> Any:
    """An instance of a dataclass from plain values, each checked against its annotation.

    `owners` returns the methods that have a key, for the error about an unknown key of a method.
    """
    hints = hints_of(cls)
    known = [f.name for f in fields(cls)]
    for key in values:
        if key not in known:
            raise unknown_key(
                f"{prefix}{key}", [f"{prefix}{name}" for name in known], values.get("name"), owners
            )
    paths = _path_keys(cls)
    typed = {}
    for key, value in values.items():
        typed[key] = coerce(value, hints[key], f"{prefix}{key}")
        if key in paths and isinstance(typed[key], str):
            typed[key] = os.path.expanduser(typed[key])
    return cls(**typed)


@cache
def _path_keys(cls: type) -> set[str]:
    hints = hints_of(cls, include_extras=True)
    return {key for key, annotation in hints.items() if UserPath in alternatives(annotation)}


def unknown_key(
    key: str, known: list[str], option: str | None = None, owners: Owners = lambda key: []
) -> ConfigError:
    """The error for an unknown key; `option` is the group's option that lacks it."""
    leaf = key.rpartition(".")[2]
    by_leaf = [name for name in known if name.rpartition(".")[2] == leaf]
    hint = f" Did you mean {by_leaf[0]!r}?" if by_leaf else did_you_mean(key, known)
    group = key.partition(".")[0]
    if group == "method" and key.count(".") == 1 and (methods := owners(leaf)):
        advice = "In a grid of methods a key goes to all of them. Run them apart; mode=compare joins results."
        if option == "base":
            advice = "Leave base out: each method is compared with it anyway."
        return ConfigError(
            f"Unknown key {key!r} of method={option}: it is a key of {', '.join(methods)}.\n{advice}"
        )
    where = f"Keys here: {', '.join(known)}." if "." in key else "--help keys lists all."
    return ConfigError(f"Unknown key {key!r}.{hint}\n{where}")


def coerce(value: Any, annotation: Any, key: str) -> Any:
    """The value in the type of its annotation. An int becomes a float, a number or path a text. Raises ConfigError."""
    choices = alternatives(annotation)
    finite = not isinstance(value, int | float) or abs(value) <= sys.float_info.max
    if not finite and (float in choices or str not in choices):
        raise ConfigError(f"{key}={value}: must be a finite number.")
    for choice in choices:
        fits, result = _fit(value, choice, key)
        if fits:
            return result
    for choice in choices if isinstance(value, str) else ():
        if get_origin(choice) is Literal:
            one_of(key, value, get_args(choice))
    expected = " or ".join(_describe(choice) for choice in choices)
    shown = "null" if value is None else value
    raise ConfigError(f"{key}={shown}: expected {expected}.")


def alternatives(annotation: Any) -> list[Any]:
    """The types that an annotation allows."""
    if get_origin(annotation) in (Union, types.UnionType):
        return list(get_args(annotation))
    return [annotation]


def _fit(value: Any, annotation: Any, key: str) -> tuple[bool, Any]:
    origin = get_origin(annotation)
    if annotation is Any:
        return True, value
    if annotation in (None, type(None)):
        return value is None, None
    if is_dataclass(annotation) and isinstance(value, dict):
        return True, build(annotation, value, f"{key}.")  # type: ignore[arg-type]
    if origin is Literal:
        return value in get_args(annotation), value
    if origin in (list, tuple) and isinstance(value, (list, tuple)):
        inner = (get_args(annotation) or (Any,))[0]
        return True, origin(
            coerce(item, inner, f"{key}[{index}]") for index, item in enumerate(value)
        )
    if origin is dict and isinstance(value, dict):
        inner = (get_args(annotation) or (Any, Any))[1]
        return True, {
            str(name): coerce(item, inner, f"{key}.{name}") for name, item in value.items()
        }
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        return True, float(value)
    if annotation is str and isinstance(value, (int, float, Path)) and not isinstance(value, bool):
        return True, str(value)
    plain = isinstance(annotation, type) and isinstance(value, annotation)
    return plain and not (isinstance(value, bool) and annotation is not bool), value


def _describe(annotation: Any) -> str:
    names = {
        int: "an integer",
        float: "a number",
        str: "text",
        bool: "true or false",
        type(None): "null",
    }
    if annotation in names:
        return names[annotation]
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    return {list: "a list", tuple: "a list", dict: "a mapping"}.get(
        get_origin(annotation), str(annotation)
    )


def one_of(key: str, value: str | None, choices: Sequence[str]) -> None:
    """Raise ConfigError, with the closest choice, for a value that is none of the choices."""
    if value is not None and value not in choices:
        raise ConfigError(
            f"{key}={value} is unknown. Choices: {', '.join(choices)}.{did_you_mean(value, choices)}"
        )


def at_least(key: str, value: float | None, least: float, most: int | None = None) -> None:
    """Raise ConfigError for a value below `least`, above `most` or NaN."""
    if value is not None and not least <= value <= (math.inf if most is None else most):
        limit = "" if most is None else f" and at most {most:,}"
        raise ConfigError(f"{key}={value}: must be a number that is at least {least}{limit}.")


def above_zero(key: str, value: float | None) -> None:
    """Raise ConfigError for a value that is not above 0, or NaN."""
    if value is not None and not value > 0:
        raise ConfigError(f"{key}={value}: must be a number above 0.")


PositiveInt = Annotated[int, "at least 1"]
NonNegativeInt = Annotated[int, "at least 0"]
PositiveFloat = Annotated[float, "above 0"]
NonNegativeFloat = Annotated[float, "at least 0"]
Share = Annotated[float, "0 to 1"]
Seed = Annotated[int, "0 to 2^32 - 1"]
MAX_SEED = 2**32 - 1
"""The largest seed of NumPy and of transformers' `set_seed`."""
UserPath = Annotated[str, "a path"]
"""A path or a hub id, in which `build` puts the home folder in the place of `~`."""
LIMITS: dict[Any, Callable[[str, float], None]] = {
    PositiveInt: lambda key, value: at_least(key, value, 1),
    NonNegativeInt: lambda key, value: at_least(key, value, 0),
    PositiveFloat: above_zero,
    NonNegativeFloat: lambda key, value: at_least(key, value, 0),
    Share: lambda key, value: at_least(key, value, 0, 1),
    Seed: lambda key, value: at_least(key, value, 0, MAX_SEED),
}
"""The check of a value by its annotation."""


def check_limits(values: Any, prefix: str = "method.") -> None:
    """Raise ConfigError for a field of a dataclass that breaks its annotation: a `Literal`, or one of `LIMITS`."""
    for key, annotation in hints_of(values.__class__, include_extras=True).items():
        value = getattr(values, key)
        for choice in alternatives(annotation):
            if get_origin(choice) is Literal:
                one_of(f"{prefix}{key}", value, get_args(choice))
            elif (
                isinstance(choice, Hashable) and choice in LIMITS and isinstance(value, int | float)
            ):
                LIMITS[choice](f"{prefix}{key}", value)


def did_you_mean(word: str, choices: Any) -> str:
    """The text " Did you mean 'x'?" with the closest choice; empty if none is close."""
    from difflib import get_close_matches

    leaves = {str(choice).rpartition(".")[2].lower(): str(choice) for choice in choices}
    matches = get_close_matches(
        str(word).rpartition(".")[2].lower(), list(leaves), n=1, cutoff=0.52
    )
    return f" Did you mean {leaves[matches[0]]!r}?" if matches else ""
