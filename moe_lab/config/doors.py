"""Keys whose own keys are a library's, under the library's names: `method.trainer.optim=adafactor`.

The library checks them where the key is read (docs/doors.md). Their values are dictionaries without
a schema, to which Hydra adds keys only with `++`. So the overrides get it here.
"""

DOORS = (
    "method.trainer",
    "method.early_stopping",
    "launcher.parameters",
)
"""The keys. Their default is an empty dictionary."""


def is_in_door(key: str) -> bool:
    """Whether a key is one of `DOORS`, or a key in it."""
    return any(key == door or key.startswith(f"{door}.") for door in DOORS)
