"""Plain values of a JSON file as frozen dataclasses."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def typed(kind: Any, value: Any) -> Any:
    """The value as an instance of a type: a dataclass from a mapping, and what its fields hold, lists and tuples too.

    Keys that a dataclass does not have are left out. Raises ValueError for a value of another type, and a missing key.
    """
    origin, inner, of_fields = _form(kind)
    if origin in (Union, UnionType):
        if value is None and type(None) in inner:
            return None
        [kind] = [one for one in inner if one is not type(None)]
        return typed(kind, value)
    if isinstance(value, dict):
        if hasattr(kind, "from_json"):
            return kind.from_json(value)
        if of_fields is not None:
            if lacking := [
                name for name, (_, required) in of_fields.items() if required and name not in value
            ]:
                raise ValueError(f"{lacking[0]} is missing")
            known = ((name, value[name]) for name in of_fields if name in value)
            return kind(**{name: typed(of_fields[name][0], one) for name, one in known})
        if origin is dict:
            return {key: typed(inner[1], one) for key, one in value.items()}
    if origin is list and isinstance(value, list):
        return [typed(inner[0], one) for one in value]
    if origin is tuple and isinstance(value, list) and (inner[-1] is ... or len(inner) == len(value)):
        return tuple(typed(inner[0], one) for one in value)
    if kind is Any or (isinstance(kind, type) and isinstance(value, (int, float) if kind is float else kind)):
        return value
    raise ValueError(f"{value!r:.40} is no {getattr(kind, '__name__', kind)}")


@cache  # a log of answers has a hundred thousand lines
def _form(kind: Any) -> tuple[Any, tuple[Any, ...], dict[str, tuple[Any, bool]] | None]:
    """What a type is of, its parts, and of a dataclass the type of each field and whether it is required."""
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return get_origin(kind), get_args(kind), None
    hints = get_type_hints(kind)
    own = [one for one in fields(kind) if one.init]
    required = {one.name: one.default is MISSING and one.default_factory is MISSING for one in own}
    return None, (), {name: (hints[name], needed) for name, needed in required.items()}
