"""Plain values of a JSON file as frozen dataclasses."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def typed(kind: Any, value: Any) -> Any:
    """The value as an instance of a type: a dataclass from a mapping, and what its fields hold, lists and tuples too.

    Keys that a dataclass does not have are left out. Raises ValueError for a value of another type, and a missing key.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and type(None) in inner:
            return None
        [kind] = [one for one in inner if one is not type(None)]
        return typed(kind, value)
    if isinstance(value, dict) and hasattr(kind, "from_json"):
        return kind.from_json(value)
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        own = [one for one in fields(kind) if one.init]
        if lacking := [one.name for one in own if _required(one) and one.name not in value]:
            raise ValueError(f"{lacking[0]} is missing")
        return kind(
            **{one.name: typed(_hints(kind)[one.name], value[one.name]) for one in own if one.name in value}
        )
    if origin is list and isinstance(value, list):
        return [typed(inner[0], one) for one in value]
    if origin is tuple and isinstance(value, list) and (inner[-1] is ... or len(inner) == len(value)):
        return tuple(typed(inner[0], one) for one in value)
    if origin is dict and isinstance(value, dict):
        return {key: typed(inner[1], one) for key, one in value.items()}
    if kind is Any or (isinstance(kind, type) and isinstance(value, (int, float) if kind is float else kind)):
        return value
    raise ValueError(f"{value!r:.40} is no {getattr(kind, '__name__', kind)}")


def _required(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


@cache
def _hints(kind: Any) -> dict[str, object]:
    return get_type_hints(kind)
