"""Keys whose own keys are a library's, under the library's names: `method.trainer.optim=adafactor`.

The library checks them where the key is read (docs/doors.md). Their values are dictionaries without
a schema, to which Hydra adds keys only with `++`. So the overrides get it here.
"""

import re
from enum import Enum
from typing import Any

from moe_lab.config.validators import alternatives, coerce, one_of

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


TEXT_OR_DOOR = ("method.dataset.",)
"""Beginnings of keys in place of a text: `method.dataset=toy`, or `method.dataset.path=csv`."""


URL_WITH_PASSWORD = re.compile("://[^/@]*:[^/@]*@")
"""A URL with a user's name and password."""


def is_in_door(key: str) -> bool:
    """Whether a key is one of `DOORS`, or a key in it."""
    if key.startswith(TEXT_OR_DOOR):
        return True
    return any(key == door or key.startswith(f"{door}.") for door in DOORS)


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
