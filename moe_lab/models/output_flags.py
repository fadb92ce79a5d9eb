"""The flags of a configuration that change what a forward pass returns, or whether it returns a
cache.

Training tools leave them in config.json: `output_router_logits: true` lets Mixtral and its kin
compute their load-balancing loss in every pass, which a pass of several routings has no mask for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EXPECTED = {
    "output_router_logits": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "return_dict": True,
    "use_cache": True,
}
"""The values that all code of this package expects."""


def reset_flags(config: Any) -> None:
    """Give the flags of a configuration, and of its text part, their expected values."""
    for part in _parts(config):
        for name, expected in _expected(part).items():
            if getattr(part, name) is not expected:
                setattr(part, name, expected)


@contextmanager
def expected_flags(config: Any) -> Iterator[None]:
    """Inside the context the flags have their expected values."""
    before = []
    for part in _parts(config):
        for name in _expected(part):
            before.append((part, name, getattr(part, name)))
    reset_flags(config)
    try:
        yield
    finally:
        for part, name, value in before:
            setattr(part, name, value)


def set_use_cache(config: Any, value: bool | None) -> None:
    """Set `use_cache` of a configuration, which transformers' Trainer turns off.

    None: remove it. Image-and-text models have it in their text configuration alone, where the
    Trainer does not look.
    """
    if value is not None:
        config.use_cache = value
    elif hasattr(config, "use_cache"):
        del config.use_cache


def _parts(config: Any) -> list[Any]:
    """The configuration, and that of its text model if it is another one."""
    text = config.get_text_config(decoder=True)
    return [config] if text is config else [config, text]


def _expected(config: Any) -> dict[str, bool]:
    """The expected values of the flags that a configuration has."""
    flags = {name: value for name, value in EXPECTED.items() if hasattr(config, name)}
    if getattr(config, "router", None) == "expert":
        del flags["use_cache"]  # expert choice reads whole sequences
    return flags
