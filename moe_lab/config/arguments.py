"""Checks of arguments of the Python interface. Every error is one sentence: the argument, its value
and the remedy."""

from typing import Annotated, Any, get_type_hints

from pydantic import Field, StrictInt, StrictStr, TypeAdapter, ValidationError

from moe_lab.config.schema import Config
from moe_lab.config.validators import coerce
from moe_lab.errors import ConfigError

NonEmptyText = Annotated[StrictStr, Field(min_length=1)]


def wrong(argument: str, value: Any, remedy: str) -> ConfigError:
    """The error for an argument; its value is on one line, cut off where it is long."""
    text = " ".join(repr(value).split())
    if len(text) > 60:
        text = f"{text[:57]}..."
    return ConfigError(f"{argument}={text}: {remedy}.")


def checked_settings(**settings: Any) -> dict[str, Any]:
    """The given ones of `seed`, `batch_size`, `max_batch_size` and `max_length`, in the types that
    the command takes. Raises ConfigError for another type and for an impossible value."""
    hints = get_type_hints(Config)
    typed = {name: coerce(value, hints[name], name) for name, value in settings.items()}
    Config(**typed)  # checks the values
    return typed


def checked(argument: str, value: Any, kind: Any, remedy: str) -> Any:
    """The value, if pydantic takes it for the type `kind`; a tuple becomes a list. Raises
    ConfigError."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise wrong(argument, value, remedy) from error


def checked_texts(argument: str, value: Any) -> list[str]:
    """A text, or a list of them, as a list. Raises ConfigError for anything else."""
    remedy = (
        "give a text or a list of texts. Chat messages become one by "
        "tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True); "
        "token ids are for next_token_logprobs"
    )
    texts = [value] if isinstance(value, str) else value
    return list(checked(argument, texts, Annotated[list[StrictStr], Field(min_length=1)], remedy))


def checked_ids(argument: str, value: Any, vocabulary: int, most: int, least: int = 1) -> list[int]:
    """Token ids of one text, of a list or a tensor. Raises ConfigError for anything else."""
    ids = value.tolist() if hasattr(value, "tolist") else value
    token = Annotated[StrictInt, Field(ge=0, lt=vocabulary)]
    remedy = (
        f"give {least} to {most} token ids below {vocabulary}, as tokenizer(text).input_ids has "
        "them"
    )
    kind: Any = Annotated[
        list[token],  # type: ignore[valid-type]
        Field(min_length=least, max_length=most),
    ]
    return list(checked(argument, ids, kind, remedy))
