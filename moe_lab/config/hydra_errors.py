"""Messages for the errors of Hydra and OmegaConf: a few lines with the closest valid choice and
what to do."""

import re
from typing import Any

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from moe_lab.config.catalog import unknown_option
from moe_lab.config.overrides import GROUPS, as_typed
from moe_lab.config.validators import Owners, unknown_key

ADVICE_TO_FORCE = re.compile(r"use \+|a second \+")
"""Hydra proposes `+key` and `++key`, which are refused here."""
AMBIGUOUS = re.compile(r"Ambiguous value for argument '\+*([^=]+)=(.*)'")
REQUEST_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError)
MOST_LINES = 5
"""Lines of a library's message that are shown."""
OTHER_GRIDS = {
    "seed": " Consecutive seeds with a summary: seeds=<number>.",
    "task": " Several tasks in one run: task=lm_eval task.name=[piqa,sciq].",
}
"""What else to use for several values of a key."""


def explain(error: BaseException, owners: Owners) -> str:
    """The message for an error of Hydra or OmegaConf. `owners` as in `build`."""
    cause = error.__cause__
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} must be given: {error.full_key}=<value>. See --help."
    if isinstance(error, MissingConfigException) and error.options:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        return unknown_option(group, option, sorted(error.options))
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.parent_node is not None:
        return _missing_key(cause, owners)
    ambiguous = AMBIGUOUS.match(str(error))
    if ambiguous:
        return _several_values(*ambiguous.groups())
    if isinstance(error, OverrideParseException):
        if "=" not in error.override:
            return f"{error.override!r} is no key=value, as mode=report is. See --help."
        lines = [
            f"{as_typed(str(error.override))}: {_lines_of(error)[0]}",
            "Quote a value that has brackets or quotes in it.",
        ]
    else:
        lines = _lines_of(error)
    return "\n".join([*lines[:MOST_LINES], "See --help for what can be composed, and how."])


def _lines_of(error: BaseException) -> list[str]:
    """The lines of an error's message, and the first two of its cause."""
    lines = []
    for line in str(error).splitlines():
        if line.strip() and not ADVICE_TO_FORCE.search(line):
            lines.append(line)
    if error.__cause__ is not None:
        cause_lines = [line.strip() for line in str(error.__cause__).splitlines()]
        lines.extend([line for line in cause_lines if line][:2])
    return lines


def _several_values(key: str, values: str) -> str:
    """The message for several values of a key without `-m`."""
    other_ways = OTHER_GRIDS.get(key)
    if other_ways is None:
        other_ways = "" if key in GROUPS else f" A list, if the key takes one: {key}=[{values}]."
    return f"{key}={values}: a key takes one value. A grid: -m {key}={values}.{other_ways}"


def _missing_key(cause: Any, owners: Owners) -> str:
    """The message for a key that a configuration does not have."""
    section = cause.parent_node
    key = str(cause.full_key)
    prefix, _, last_part = key.rpartition(".")
    names = [str(name) for name in section if name != "hydra"]
    if prefix:
        known = [f"{prefix}.{name}" for name in names]
        option = section.get("name") if isinstance(section, DictConfig) else None
        return str(unknown_key(key, known, option, owners))

    # a key at the top level may be meant for a group: n for method.n
    known = list(names)
    for name in names:
        if isinstance(section[name], DictConfig) and last_part in section[name]:
            known.append(f"{name}.{last_part}")
    return str(unknown_key(key, known, None, owners))
