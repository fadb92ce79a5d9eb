"""Mandatory values: `???` in the YAML of an option is a value that a command must give.

OmegaConf would keep the schema's default in the place of `???` when it merges an option into the
schema, in silence. So `???` becomes an interpolation while the option is read, which no merge
removes.
"""

from typing import Any, NoReturn

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

RESOLVER = "must_be_given"
BEGINNING = f"${{{RESOLVER}:"
"""The first characters of a mandatory value; its key and a closing brace follow."""


def register() -> None:
    """Let OmegaConf raise its own error where a mandatory value is resolved."""
    OmegaConf.register_new_resolver(RESOLVER, raise_missing, replace=True)


def raise_missing(key: str) -> NoReturn:
    """Raise OmegaConf's error for a mandatory value that is not given."""
    error = MissingMandatoryValue(f"{key} must be given")
    error.full_key = key
    raise error


def keep_mandatory(option: DictConfig, prefix: str) -> None:
    """Put an interpolation in the place of each `???` of an option.

    Args:
        option: is changed in place.
        prefix: what stands before its keys in a configuration, `model.` for example.
    """
    for name in option:
        key = str(name)
        if OmegaConf.is_missing(option, key):
            option[key] = f"{BEGINNING}{prefix}{key}}}"
        elif OmegaConf.is_dict(option._get_node(key)) and key != "hydra":
            keep_mandatory(option[key], f"{prefix}{key}.")


def has_mandatory(text: str) -> bool:
    """Whether the text of a configuration has a mandatory value."""
    return BEGINNING in text


def check_mandatory(values: dict[str, Any]) -> None:
    """Raise MissingMandatoryValue for a mandatory value that is not given."""
    for value in values.values():
        if isinstance(value, dict):
            check_mandatory(value)
        elif isinstance(value, str) and value.startswith(BEGINNING):
            raise_missing(value.removeprefix(BEGINNING).removesuffix("}"))
