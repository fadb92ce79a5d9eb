"""Checks of arguments of the Python interface. Every error is one sentence: the argument, its value and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

from moe_lab.config.schema import Config
from moe_lab.config.validators import coerce
from moe_lab.errors import ConfigError


def shown(value: Any) -> str:
    """A value on one line, cut off where it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def wrong(argument: str, value: Any, remedy: str) -> ConfigError:
    """The error for an argument."""
    return ConfigError(f"{argument}={shown(value)}: {remedy}.")


def checked_settings(**settings: Any) -> dict[str, Any]:
    """`seed`, `batch_size`, `max_batch_size` and `max_length`, of the types and values that the command takes."""
    hints = get_type_hints(Config)
    plain = {name: coerce(value, hints[name], name) for name, value in settings.items()}
    Config(**plain)
    return plain


def checked_texts(argument: str, value: Any) -> list[str]:
    """A text, or a list of them, as a list. Raises ConfigError for anything else, and for an empty list."""
    if isinstance(value, str):
        return _encodable(argument, [value])
    if not isinstance(value, Sequence) and type(value).__module__.partition(".")[0] in ("torch", "numpy"):
        raise wrong(
            argument,
            value,
            "give texts; next_token_logprobs and model.generate(custom_generate=) take token ids",
        )
    if not isinstance(value, list | tuple):
        raise wrong(argument, value, "give a text or a list of texts")
    if not value:
        raise wrong(argument, value, "the list is empty; give at least one text")
    for each in value:
        if isinstance(each, dict):
            raise wrong(
                argument,
                value,
                "chat messages are no text; give tokenizer.apply_chat_template(messages, tokenize=False)",
            )
        if not isinstance(each, str):
            raise wrong(argument, value, f"give a text or a list of texts; {shown(each)} is none")
    return _encodable(argument, list(value))


def _encodable(argument: str, texts: list[str]) -> list[str]:
    """The texts. Raises ConfigError for half of a surrogate pair, which no tokenizer reads."""
    for text in texts:
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise wrong(argument, text, "half of a surrogate pair is no letter; leave it out")
    return texts


def checked_ids(argument: str, value: Any, vocabulary: int, most: int) -> list[int]:
    """Token ids of one text, of a list or a tensor. Raises ConfigError for anything else."""
    ids = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(ids, list | tuple) or not all(type(each) is int for each in ids):
        raise wrong(argument, value, "give token ids, as tokenizer(text).input_ids has them")
    if not 1 <= len(ids) <= most:
        raise wrong(argument, value, f"{len(ids)} token ids; the model reads between 1 and {most}")
    if outside := [each for each in ids if not 0 <= each < vocabulary]:
        raise wrong(
            argument,
            value,
            f"the token id {outside[0]} is not below {vocabulary}, the size of the vocabulary",
        )
    return list(ids)
