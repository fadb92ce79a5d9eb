"""Keys whose own keys are a library's, under the library's names: `method.trainer.optim=adafactor`.

The library checks them where the key is read (docs/doors.md). Their values are dictionaries without
a schema, to which Hydra adds keys only with `++`. So the overrides get it here.
"""

import re
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

from moe_lab.config.validators import alternatives, coerce, did_you_mean, one_of
from moe_lab.errors import ConfigError

DOORS = (
    "method.trainer",
    "method.early_stopping",
    "method.peft",
    "tuning.sampler",
    "tuning.pruner",
    "logger.init",
    "model.load",
    "launcher.parameters",
)
"""The keys. Their default is an empty dictionary."""


TEXT_OR_DOOR = ("method.dataset.", "tuning.storage.")
"""Beginnings of keys in place of a text: `method.dataset=toy`, or `method.dataset.path=csv`."""


URL_WITH_PASSWORD = re.compile("://[^/@]*:[^/@]*@")
"""A URL with a user's name and password."""


def is_in_door(key: str) -> bool:
    """Whether a key is one of `DOORS`, or a key in it."""
    if key.startswith(TEXT_OR_DOOR):
        return True
    return any(key == door or key.startswith(f"{door}.") for door in DOORS)


def check_name(
    key: str, known: Collection[str], refused: Mapping[str, str], page: str, noun: str = "field"
) -> None:
    """Raise ConfigError for a key that the library does not have, and one that is not taken.

    Args:
        key: method.peft.r, for example. Its last part is the library's name.
        known: all names of the library.
        refused: the reasons of those that are not taken.
        page: the address of the library's own list.
        noun: what the library calls its names.
    """
    name = key.rpartition(".")[2]
    if name in refused:
        raise ConfigError(f"{key} is not taken: {refused[name]}.")
    if name not in known:
        accepted = [other for other in known if other not in refused]
        raise ConfigError(
            f"Unknown {noun} {key}.{did_you_mean(name, accepted)}\nAll {noun}s: {page}"
        )


def library_value(key: str, value: Any, hint: Any) -> Any:
    """A value in the type that a library declares for it.

    Args:
        hint: the annotation; a text for an enumeration must be one of its values.

    Raises ConfigError.
    """
    for choice in alternatives(hint):
        if isinstance(choice, type) and issubclass(choice, Enum):
            one_of(key, value, [str(member.value) for member in choice])
    return coerce(value, hint, key)
