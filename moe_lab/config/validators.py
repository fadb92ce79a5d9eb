"""Plain values to typed dataclasses: unknown keys, values of another type and impossible values are
ConfigErrors.

`build` checks keys and types against a dataclass. Its `__post_init__` checks values: `check_limits`
those that their annotations limit, `one_of`, `at_least` and `above_zero` others. All take None for
a value that is not set.

pydantic, which reads and writes results, does not check configurations: importing it takes longer
than `--help`, and a function as long as `_fit` would turn its errors into messages that name the
key as it was typed.
"""

import math
import os
import sys
import types
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from moe_lab.errors import ConfigError

hints_of = cache(get_type_hints)
Owners = Callable[[str], list[str]]
"""The methods that have a key."""


def build(cls: type, values: dict[str, Any], prefix: str, owners: Owners = lambda key: []) -> Any:
    """An instance of a dataclass from plain values, each checked against its annotation.

    `owners` returns the methods that have a key, for the error about an unknown key of a method.
    """
    names = [field.name for field in fields(cls)]
    for key in values:
        if key not in names:
            known = [f"{prefix}{name}" for name in names]
            raise unknown_key(f"{prefix}{key}", known, values.get("name"), owners)
    hints = hints_of(cls)
    paths = _path_keys(cls)
    typed = {}
    for key, value in values.items():
        typed_value = coerce(value, hints[key], f"{prefix}{key}")
        if key in paths and isinstance(typed_value, str):
            typed_value = os.path.expanduser(typed_value)
        typed[key] = typed_value
    return cls(**typed)


@cache
def _path_keys(cls: type) -> set[str]:
    """The fields of a dataclass that are paths (`UserPath`)."""
    hints = hints_of(cls, include_extras=True)
    return {key for key, annotation in hints.items() if UserPath in alternatives(annotation)}


def unknown_key(
    key: str, known: list[str], option: str | None = None, owners: Owners = lambda key: []
) -> ConfigError:
    """The error for an unknown key; `option` is the group's option that lacks it."""
    last_part = key.rpartition(".")[2]
    if key == f"method.{last_part}":
        methods = owners(last_part)
        if methods:
            advice = (
                "In a grid of methods a key goes to all of them. Run them apart; mode=compare "
                "joins results."
            )
            if option == "base":
                advice = "Leave base out: each method is compared with it anyway."
            return ConfigError(
                f"Unknown key {key!r} of method={option}: it is a key of {', '.join(methods)}.\n"
                f"{advice}"
            )

    same_last_part = [name for name in known if name.rpartition(".")[2] == last_part]
    if same_last_part:
        hint = f" Did you mean {same_last_part[0]!r}?"
    else:
        hint = did_you_mean(key, known)
    if "." in key:
        where = f"Keys here: {', '.join(known)}."
    else:
        where = "--help keys lists all."
    return ConfigError(f"Unknown key {key!r}.{hint}\n{where}")


def coerce(value: Any, annotation: Any, key: str) -> Any:
    """The value in the type of its annotation. An int becomes a float, a number or path a text.
    Raises ConfigError."""
    choices = alternatives(annotation)
    is_finite = not isinstance(value, int | float) or abs(value) <= sys.float_info.max
    takes_as_text = str in choices and float not in choices
    if not is_finite and not takes_as_text:
        raise ConfigError(f"{key}={value}: must be a finite number.")
    for choice in choices:
        fitted = _fit(value, choice, key)
        if fitted.fits:
            return fitted.value
    for choice in choices:
        if isinstance(value, str) and get_origin(choice) is Literal:
            one_of(key, value, get_args(choice))
    expected = " or ".join(_describe(choice) for choice in choices)
    shown = "null" if value is None else value
    raise ConfigError(f"{key}={shown}: expected {expected}.")


def alternatives(annotation: Any) -> list[Any]:
    """The types that an annotation allows."""
    if get_origin(annotation) in (Union, types.UnionType):
        return list(get_args(annotation))
    return [annotation]


class _Fitted(NamedTuple):
    """A value next to a type that its annotation allows."""

    fits: bool
    value: Any
    """In the type, if it fits."""


def _fit(value: Any, annotation: Any, key: str) -> _Fitted:
    """The value in the type of an annotation without alternatives, if it fits.

    Items of a list, values of a mapping and keys of a dataclass are coerced, too. Raises
    ConfigError for one of them that does not fit.
    """
    origin = get_origin(annotation)
    if annotation is Any:
        return _Fitted(True, value)
    if annotation in (None, type(None)):
        return _Fitted(value is None, None)
    if is_dataclass(annotation) and isinstance(value, dict):
        return _Fitted(True, build(annotation, value, f"{key}."))  # type: ignore[arg-type]
    if origin is Literal:
        return _Fitted(value in get_args(annotation), value)
    if origin in (list, tuple) and isinstance(value, list | tuple):
        item_type, *_ = get_args(annotation) or (Any,)
        items = []
        for index, item in enumerate(value):
            items.append(coerce(item, item_type, f"{key}[{index}]"))
        return _Fitted(True, origin(items))
    if origin is dict and isinstance(value, dict):
        _, value_type = get_args(annotation) or (Any, Any)
        typed = {}
        for name, item in value.items():
            typed[str(name)] = coerce(item, value_type, f"{key}.{name}")
        return _Fitted(True, typed)
    if isinstance(value, bool):  # which is an int in Python
        return _Fitted(annotation is bool, value)
    if annotation is float and isinstance(value, int):
        return _Fitted(True, float(value))
    if annotation is str and isinstance(value, int | float | Path):
        return _Fitted(True, str(value))
    is_instance = isinstance(annotation, type) and isinstance(value, annotation)
    return _Fitted(is_instance, value)


def _describe(annotation: Any) -> str:
    """A type in the words of an error: "an integer", "a list", or the choices of a `Literal`."""
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
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " | ".join(str(member.value) for member in annotation)
    containers = {list: "a list", tuple: "a list", dict: "a mapping"}
    return containers.get(get_origin(annotation), str(annotation))


def one_of(key: str, value: str | None, choices: Sequence[str]) -> None:
    """Raise ConfigError, with the closest choice, for a value that is none of the choices."""
    if value is not None and value not in choices:
        raise ConfigError(
            f"{key}={value} is unknown. Choices: "
            f"{', '.join(choices)}.{did_you_mean(value, choices)}"
        )


def at_least(key: str, value: float | None, least: float, most: int | None = None) -> None:
    """Raise ConfigError for a value below `least`, above `most` or NaN."""
    if value is None:
        return
    upper_limit = "" if most is None else f" and at most {most:,}"
    largest = math.inf if most is None else most
    if not least <= value <= largest:
        raise ConfigError(f"{key}={value}: must be a number that is at least {least}{upper_limit}.")


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
    """Raise ConfigError for a field of a dataclass that breaks its annotation: a `Literal`, or one
    of `LIMITS`."""
    for key, annotation in hints_of(values.__class__, include_extras=True).items():
        value = getattr(values, key)
        for choice in alternatives(annotation):
            if get_origin(choice) is Literal:
                one_of(f"{prefix}{key}", value, get_args(choice))
            elif isinstance(value, int | float) and isinstance(choice, Hashable):
                check = LIMITS.get(choice)
                if check is not None:
                    check(f"{prefix}{key}", value)


def did_you_mean(word: str, choices: Any) -> str:
    """The text " Did you mean 'x'?" with the closest choice; empty if none is close."""
    from difflib import get_close_matches

    by_last_part = {_last_part(choice): str(choice) for choice in choices}
    matches = get_close_matches(_last_part(word), list(by_last_part), n=1, cutoff=0.52)
    return f" Did you mean {by_last_part[matches[0]]!r}?" if matches else ""


def _last_part(name: object) -> str:
    """The part of a key after the last dot, in lower case."""
    return str(name).rpartition(".")[2].lower()
