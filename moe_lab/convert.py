"""From composed values to the typed `Config`: unknown keys, missing groups and wrong types are named here."""

from __future__ import annotations

import types
from dataclasses import fields
from pathlib import PurePath
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from moe_lab.compose import GROUPS, Cell, top_level_keys
from moe_lab.config import Config, did_you_mean
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method


def to_configs(cells: list[Cell]) -> list[Config]:
    """The typed configs of a grid; an error names its cell."""
    configs = []
    for cell in cells:
        try:
            configs.append(to_config(cell))
        except ConfigError as error:
            where = f"In the cell {' '.join(cell.overrides)}:\n" if len(cells) > 1 else ""
            raise ConfigError(f"{where}{error}") from error
    return configs


def to_config(cell: Cell) -> Config:
    """The typed config of a cell. ConfigError names the key, what it expects or the closest one."""
    values = dict(cell.values)
    _check_names(values, cell.choices)
    sections: dict[str, Any] = {}
    for group in GROUPS:
        section = _section(values, group)
        sections[group] = {**section, "name": section.get("name") or cell.choices[group]}
    _name_model(sections["model"], cell.overrides)
    typed = {group: build(GROUPS[group], section, prefix=f"{group}.") for group, section in sections.items()}
    method = _section(values, "method")
    typed["method"] = build(get_method(str(method.get("name"))).Config, method, prefix="method.")
    rest = {key: value for key, value in values.items() if key not in typed}
    rest["gen_kwargs"] = _gen_kwargs(rest["gen_kwargs"])
    return build(Config, {**rest, **typed, "overrides": cell.overrides}, prefix="")


def build(cls: type, values: dict[str, Any], prefix: str) -> Any:
    """An instance of a dataclass from plain values, every value checked against its annotation."""
    hints = get_type_hints(cls)
    known = [f.name for f in fields(cls)]
    for key in values:
        if key not in known:
            raise unknown_key(f"{prefix}{key}", [f"{prefix}{name}" for name in known], values.get("name"))
    return cls(**{key: coerce(value, hints[key], f"{prefix}{key}") for key, value in values.items()})


def unknown_key(key: str, known: list[str], option: str | None = None) -> ConfigError:
    """The error for a key that does not exist; `option` is the group's option that lacks it."""
    leaf = key.rpartition(".")[2]
    by_leaf = [name for name in known if name.rpartition(".")[2] == leaf]
    hint = f" Did you mean {by_leaf[0]!r}?" if by_leaf else did_you_mean(key, known)
    group = key.partition(".")[0]
    keys = f"Keys of {group}={option}" if option else "Keys here"
    where = f"{keys}: {', '.join(known)}." if "." in key else "See --help for all keys."
    return ConfigError(f"Unknown key {key!r}.{hint}\n{where}")


def coerce(value: Any, annotation: Any, key: str) -> Any:
    """`value` as its annotation wants it (an int becomes a float where one is wanted), or ConfigError."""
    for choice in _alternatives(annotation):
        fits, result = _fit(value, choice, key)
        if fits:
            return result
    expected = " or ".join(_describe(choice) for choice in _alternatives(annotation))
    shown = "null" if value is None else value
    raise ConfigError(f"{key}={shown}: expected {expected}.")


def _alternatives(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Union, types.UnionType):
        return list(get_args(annotation))
    return [annotation]


def _fit(value: Any, annotation: Any, key: str) -> tuple[bool, Any]:
    origin = get_origin(annotation)
    if annotation is Any:
        return True, value
    if annotation in (None, type(None)):
        return value is None, None
    if origin is Literal:
        return value in get_args(annotation), value
    if origin in (list, tuple) and isinstance(value, list):
        inner = (get_args(annotation) or (Any,))[0]
        return True, origin(coerce(item, inner, f"{key}[{index}]") for index, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        inner = (get_args(annotation) or (Any, Any))[1]
        return True, {str(name): coerce(item, inner, f"{key}.{name}") for name, item in value.items()}
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        return True, float(value)
    if annotation is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return True, str(value)
    plain = isinstance(annotation, type) and isinstance(value, annotation)
    return plain and not (isinstance(value, bool) and annotation is not bool), value


def _describe(annotation: Any) -> str:
    names = {int: "an integer", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    if annotation in names:
        return names[annotation]
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    return {list: "a list", tuple: "a list", dict: "a mapping"}.get(get_origin(annotation), str(annotation))


def _check_names(values: dict[str, Any], choices: dict[str, str]) -> None:
    known = top_level_keys()
    nested = [
        f"{group}.{key}" for group, section in values.items() if isinstance(section, dict) for key in section
    ]
    for key in values:
        if key not in known:
            raise unknown_key(key, known + [name for name in nested if not name.startswith(f"{key}.")])
    for key in known:
        if key not in values or (key in GROUPS and key not in choices):
            raise ConfigError(f"{key!r} was removed, but a run needs it. Leave out the override ~{key}.")


def _section(values: dict[str, Any], group: str) -> dict[str, Any]:
    section = values[group]
    if not isinstance(section, dict):
        raise ConfigError(f"{group}={section}: choose an option of conf/{group}/ (see --help).")
    return section


def _name_model(section: dict[str, Any], overrides: list[str]) -> None:
    """A model given by path is named after its last part, unless a name was given too."""
    keys = {override.partition("=")[0].lstrip("+") for override in overrides}
    if section.get("path") and "model.path" in keys and "model.name" not in keys:
        section["name"] = PurePath(str(section["path"])).name


def _gen_kwargs(value: Any) -> Any:
    """lm-eval's own spelling `temperature=0.7,do_sample=true` as a mapping."""
    if not isinstance(value, str):
        return value
    pairs = [pair.partition("=") for pair in value.split(",")]
    if any(not equals for _, equals, _ in pairs):
        raise ConfigError(f"gen_kwargs={value}: write gen_kwargs=key=value,key=value.")
    return {key.strip(): yaml.safe_load(item) for key, _, item in pairs}
