"""Tokenized conversations of a training, made without weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moe_lab.methods.conversations.read import Data
from moe_lab.methods.conversations.tokenize import Encoded, encode_all
from moe_lab.methods.finetune_freeze.config import Recipe
from moe_lab.models.tokenizer import load_tokenizer, with_template

if TYPE_CHECKING:
    from moe_lab.config.schema import Config
    from moe_lab.models.facts import ModelFacts


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A data set as token ids, and the tokenizer that is saved with the model."""

    data: Data
    train: Encoded
    validation: Encoded | None
    """What is held out, if anything is."""
    tokenizer: Any
    plain_template: bool
    """Whether the tokenizer had no chat template, and was given the plain one."""


_last: dict[Any, tuple[Encoded, Encoded | None]] = {}
"""What was encoded last, which the runs of a grid mostly share, by all that it depends on."""


def prepare(config: Config, recipe: Recipe, data: Data, facts: ModelFacts) -> Prepared:
    """Encode the training and the held-out conversations.

    Raises TaskError where nothing is left of one of them, or the chat template refuses a conversation; ConfigError
    where a phase has no step.
    """
    tokenizer = load_tokenizer(config.model, offline=config.offline)
    plain = with_template(tokenizer)
    train, held_out = _encoded(tokenizer, data, min(recipe.length, facts.max_length))
    recipe.ends(len(train.rows))
    return Prepared(data=data, train=train, validation=held_out, tokenizer=tokenizer, plain_template=plain)


def _encoded(tokenizer: Any, data: Data, length: int) -> tuple[Encoded, Encoded | None]:
    """What is trained on, and what is held out, if anything is."""
    vocabulary, special = tokenizer.backend_tokenizer.to_str(), str(tokenizer.special_tokens_map)
    key = (vocabulary, special, tokenizer.chat_template, data.digest, length)
    if key not in _last:
        train = encode_all(tokenizer, data.train, length)
        held_out = encode_all(tokenizer, data.validation, length) if data.validation else None
        _last.clear()
        _last[key] = train, held_out
    return _last[key]
