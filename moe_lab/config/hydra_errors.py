"""Messages for errors of Hydra and OmegaConf: a few lines with the closest valid choice and what to do."""

from __future__ import annotations

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

from moe_lab.config.validators import Owners, unknown_key, unknown_option

# Hydra proposes `+key` and `++key`, which are refused here.
ADVICE_TO_FORCE = re.compile(r"use \+|a second \+")
REQUEST_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError)


def explain(error: BaseException, owners: Owners) -> str:
    """The message for an error of Hydra or OmegaConf. `owners` as in `build`."""
    cause = error.__cause__
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} must be given: {error.full_key}=<value>. See --help."
    if isinstance(error, MissingConfigException):
        return _missing_option(error)
    if isinstance(cause, (ConfigAttributeError, ConfigKeyError)) and cause.parent_node is not None:
        return _missing_key(cause, owners)
    lines = [line for line in str(error).splitlines() if line.strip() and not ADVICE_TO_FORCE.search(line)]
    if cause is not None:
        lines += [line.strip() for line in str(cause).splitlines() if line.strip()][:2]
    if isinstance(error, OverrideParseException):
        lines = [lines[0], "Quote a value that has brackets, quotes or commas in it: 'key=\"a (b)\"'."]
    return "\n".join([*lines[:5], "See --help for what can be composed, and how."])


def _missing_option(error: MissingConfigException) -> str:
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    if not error.options:
        return f"{str(error).splitlines()[0]}\nSee --help for what can be composed."
    return unknown_option(group, option, sorted(error.options))


def _missing_key(cause: Any, owners: Owners) -> str:
    root = cause.parent_node._get_root()
    prefix, _, _ = str(cause.full_key).rpartition(".")
    known = [f"{prefix}.{key}" if prefix else str(key) for key in cause.parent_node if key != "hydra"]
    if not prefix:
        sections = {
            key: node for key, node in root.items() if isinstance(node, DictConfig) and key != "hydra"
        }
        leaf = str(cause.full_key)
        known += [f"{group}.{key}" for group, section in sections.items() for key in section if key == leaf]
    option = cause.parent_node.get("name") if prefix and isinstance(cause.parent_node, DictConfig) else None
    return str(unknown_key(str(cause.full_key), known, option, owners))
