"""The data of a fine-tuning as token ids, and what a plan and a run say about them."""

from dataclasses import dataclass
from typing import Any

from moe_lab.config.schema import Config
from moe_lab.methods.answer_ends import AnswerEnd, answer_end, end_tokens
from moe_lab.methods.data_files import Data
from moe_lab.methods.finetune_freeze.config import NO_END, FinetuneConfig
from moe_lab.methods.tokenized import Encoded, encode_all
from moe_lab.models.facts import ModelFacts
from moe_lab.models.tokenizer import load_tokenizer, rendered, with_template
from moe_lab.tasks.loading import once


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A data set as token ids, and the tokenizer that is saved with the model."""

    data: Data
    train: Encoded
    validation: Encoded | None
    """The optional validation set."""
    tokenizer: Any
    end: AnswerEnd | None
    """None for data that no chat template renders."""
    notes: list[str]
    """What a plan and a run say about the data and the recipe, a sentence each."""


def prepare(config: Config, method: FinetuneConfig, data: Data, facts: ModelFacts) -> Prepared:
    """Encode the training and the validation conversations.

    Raises TaskError if nothing is left of one of them or the chat template refuses a conversation,
    ConfigError if a phase has no step or nothing would be trained.
    """
    tokenizer = load_tokenizer(config.model, offline=config.offline)
    with_template(tokenizer)
    length = min(method.length, facts.max_length)
    model_ends = end_tokens(config, tokenizer)

    def encoded() -> tuple[AnswerEnd, Encoded, Encoded | None]:
        end = rendered(tokenizer, lambda: answer_end(tokenizer, model_ends))
        validation = None
        if data.validation:
            validation = encode_all(tokenizer, data.validation, length, end)
        return end, encode_all(tokenizer, data.train, length, end), validation

    # the runs of a grid often share a data set
    vocabulary = tokenizer.backend_tokenizer.to_str()
    special = str(tokenizer.special_tokens_map)
    text = f"{vocabulary} {special} {tokenizer.chat_template}"
    key = f"encoded {text} {data.digest} {length} {sorted(model_ends)}"
    end, train, validation = once(key, encoded)
    method.check_trains(len(train.rows))

    notes = method.notes(len(train.rows)) + train.notes("training")
    if validation is not None:
        notes += validation.notes("validation")
    if data.duplicates:
        notes.append(
            f"left out of the validation data: {data.duplicates:,} conversations that are trained "
            "on or occur twice"
        )
    if end.token is None:
        notes.append(NO_END)
    return Prepared(
        data=data, train=train, validation=validation, tokenizer=tokenizer, end=end, notes=notes
    )
