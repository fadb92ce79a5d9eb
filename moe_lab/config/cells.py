"""A cell of a grid, put together from options that Hydra composed.

Hydra takes a tenth of a second for a configuration, and the tables of a paper have thousands of
cells. So Hydra composes the defaults once, and each option once. A cell's options and values are
put into a copy. Whatever is not simply `option` or `key=value` is composed by Hydra, which also
raises all errors.
"""

import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf

from moe_lab.config.doors import is_in_door
from moe_lab.config.hydra_source import Source
from moe_lab.config.mandatory import check_mandatory, has_mandatory
from moe_lab.config.overrides import GROUPS, as_typed


@dataclass(frozen=True)
class Cell:
    """A composed configuration and its overrides."""

    values: dict[str, Any]
    choices: dict[str, str]
    config_dirs: list[str]
    """The folder of `--config-dir`, if it was given."""
    overrides: list[str] = field(default_factory=list)
    method_keys: list[str] = field(default_factory=list)
    """`method.<key>=` next to experiment=; they apply to cells of the experiment and are not in
    `values`."""


def cell_of(source: Source, overrides: list[str]) -> Cell:
    """The cell of quoted overrides. Raises the errors of Hydra and OmegaConf."""
    parsed = [_parsed(override) for override in overrides]
    cell = _put_together(source, parsed)
    if cell is None:
        return composed_by_hydra(source, overrides)
    return _resolved(cell, overrides)


def composed_by_hydra(source: Source, overrides: list[str]) -> Cell:
    """As `cell_of`, by Hydra alone."""
    cell_overrides = []
    for override in overrides:
        if not override.lstrip("+~").startswith("hydra."):
            cell_overrides.append(override)
    composed = source.load(overrides)
    return _resolved(_unresolved(composed), cell_overrides)


def is_warm() -> bool:
    """Whether an option was composed before in this process."""
    return _with_option.cache_info().currsize > 0


def _resolved(cell: Cell, overrides: list[str]) -> Cell:
    """The cell with its overrides and without interpolations. Raises OmegaConf's errors."""
    values = cell.values
    text = str(values)
    if has_mandatory(text):
        check_mandatory(values)
    if "${" in text or "???" in text:
        plain = OmegaConf.to_container(
            OmegaConf.create(values), resolve=True, throw_on_missing=True
        )
        assert isinstance(plain, dict)
        values = {str(key): value for key, value in plain.items()}
    return replace(cell, values=values, overrides=[as_typed(override) for override in overrides])


@lru_cache(maxsize=4096)
def _parsed(override: str) -> Override:
    """An override as Hydra reads it. Raises Hydra's error for one that does not parse."""
    [parsed] = OverridesParser.create().parse_overrides([override])
    return parsed


def _put_together(source: Source, overrides: list[Override]) -> Cell | None:
    """The configuration that Hydra would compose of the overrides, put together from its options.

    None where that is not possible: for an override that is not simply `option` or `key=value`, an
    option that includes others, and a key that does not exist.
    """
    if not all(_is_plain(override) for override in overrides):
        return None
    options: dict[str, Override] = {}
    values: list[Override] = []
    for override in overrides:
        if override.key_or_group in GROUPS:
            options[override.key_or_group] = override
        else:
            values.append(override)

    defaults = _with_option(source, "")
    cell = copy.deepcopy(defaults)
    for group, override in options.items():
        option = _with_option(source, str(override.input_line))
        if not _changes_only(group, option, defaults):
            return None
        cell.values[group] = copy.deepcopy(option.values[group])
        cell.choices[group] = option.choices[group]
    for override in values:
        if not _set(cell.values, override.key_or_group, override.value()):
            return None
    return cell


def _is_plain(override: Override) -> bool:
    """Whether it is `key=value` or `group=option`, without `+`, `~`, a package, several values, or
    a key of Hydra."""
    if override.type is not OverrideType.CHANGE or override.package:
        return False
    return not override.is_sweep_override() and not override.is_hydra_override()


def _changes_only(group: str, option: Cell, defaults: Cell) -> bool:
    """Whether an option changes its own group alone. One that includes others changes their groups,
    too."""
    same_values = {**option.values, group: None} == {**defaults.values, group: None}
    same_choices = {**option.choices, group: None} == {**defaults.choices, group: None}
    return same_values and same_choices


def _set(values: dict[str, Any], key: str, value: Any) -> bool:
    """Set the value of an existing key, `task.metric` for example, or of a library's key
    (`doors.py`). Returns False for what Hydra merges or refuses."""
    *path, last = key.split(".")
    if is_in_door(key):
        return _set_free(values, path, last, value)
    for name in path:
        section = values.get(name)
        if not isinstance(section, dict):
            return False
        values = section
    if last not in values or isinstance(value, dict) or isinstance(values[last], dict):
        return False
    values[last] = value
    return True


def _set_free(values: dict[str, Any], path: list[str], last: str, value: Any) -> bool:
    """Set a library's key, which need not exist. A dictionary is merged with the one that is there,
    as Hydra does. Returns False for what Hydra refuses."""
    for name in path:
        section = values.setdefault(name, {})
        if not isinstance(section, dict):
            return False
        values = section
    if isinstance(value, dict):
        values.setdefault(last, {})
        return all(_set_free(values, [last], str(name), item) for name, item in value.items())
    if isinstance(values.get(last), dict):
        return False
    values[last] = value
    return True


@lru_cache(maxsize=1024)
def _with_option(source: Source, option: str) -> Cell:
    """The configuration with one option, or with "" the defaults alone, before interpolations are
    resolved.

    Raises the errors of Hydra and OmegaConf.
    """
    return _unresolved(source.load([option] if option else []))


def _unresolved(composed: DictConfig) -> Cell:
    """What Hydra composed, with its interpolations, as plain values."""
    keys = [str(key) for key in composed if key != "hydra"]
    without_hydra = OmegaConf.masked_copy(composed, keys)
    values = OmegaConf.to_container(without_hydra, resolve=False)
    assert isinstance(values, dict)
    runtime = composed.hydra.runtime
    config_dirs = []
    for source in runtime.config_sources:
        if source.provider == "command-line":
            config_dirs.append(str(source.path))
    return Cell(
        values={str(key): value for key, value in values.items()},
        choices={str(group): str(option) for group, option in runtime.choices.items()},
        config_dirs=config_dirs,
    )
