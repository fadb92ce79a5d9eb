"""Conversations as token ids, with the loss only on the tokens of the answers to train on.

A conversation that is longer than the limit keeps its first tokens. A conversation is left out, and counted, if no
token of such an answer is left, if the assistant speaks first, or if the chat template hides where its answers are.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError, TaskError
from moe_lab.methods.answer_ends import AnswerEnd, answer_end, end_tokens, is_blank, length_to_end
from moe_lab.methods.data_files import (
    ANSWERER,
    COUNTED_LENGTH,
    Conversation,
    Data,
    is_empty_answer,
    is_trained_on,
)
from moe_lab.methods.finetune_freeze.config import NO_END, FinetuneConfig, empty_answers_note
from moe_lab.metrics.teacher_forcing import padded
from moe_lab.models.facts import ModelFacts
from moe_lab.models.tokenizer import load_tokenizer, rendered, with_template
from moe_lab.models.transformers_internals import generation_blocks
from moe_lab.tasks.loading import once

NO_LOSS = -100
"""Label of tokens without a loss, as in transformers."""
EMPTY = -1
"""The index of a row without labels in `Rows`."""


@dataclass(frozen=True)
class Row:
    """A conversation as token ids and labels of the same length."""

    ids: list[int]
    labels: list[int]

    @classmethod
    def of(cls, prompt: Sequence[int], answer: Sequence[int]) -> "Row":
        """A prompt without labels, and its answer."""
        return cls([*prompt, *answer], [NO_LOSS] * len(prompt) + [*answer])


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """An encoded data set, with the number of truncated and left-out conversations."""

    rows: list[Row]
    truncated: int
    """The number of rows that are longer than the limit. Their first tokens are kept."""
    left_out: int
    """The number of conversations without an answer to train on, or whose answers are not found or begin after the
    limit."""
    completed: int = 0
    """The number of rows that got a label for the end of an answer from `with_end_labels`."""
    empty_answers: int = 0
    """The number of answers without text, which have no labels."""

    def notes(self, what: str) -> list[str]:
        """What a plan and a run say about the data that are not trained on, a sentence each.

        Args:
            what: "training" or "validation".
        """
        sentences = []
        if self.empty_answers:
            sentences.append(empty_answers_note(self.empty_answers, what))
        if self.left_out:
            total = len(self.rows) + self.left_out
            sentences.append(
                f"left out of the {what} data: {self.left_out:,} of {total:,} conversations, which have no answer to "
                "train on within method.length, begin with the assistant, or whose answers the chat template hides"
            )
        return sentences


class Rows(Dataset[dict[str, list[int]]]):
    """Rows for the Trainer. Number `EMPTY` is a row of two tokens without labels."""

    def __init__(self, rows: Sequence[Row]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        if index == EMPTY:
            return {"input_ids": self.rows[0].ids[:2], "labels": [NO_LOSS] * 2}
        return {"input_ids": self.rows[index].ids, "labels": self.rows[index].labels}


def encode_all(
    tokenizer: Any, conversations: Sequence[Conversation], length: int, end: AnswerEnd | None = None
) -> Encoded:
    """All conversations, cut to `length` tokens.

    Args:
        end: every answer gets this end, with labels (`with_end_labels`); None: only as the template labels it.

    Raises TaskError if none is left or the chat template refuses one, ConfigError if it hides the answers of all.
    """
    # A message has a token or more: those after the first `length` are cut. Locating answers is quadratic in them.
    begun = [each[: length + 1] for each in conversations if each and each[0]["role"] != ANSWERER]
    whole = encode(tokenizer, begun)
    if begun and not whole:
        raise ConfigError(
            "The chat template hides where the answers are. Use another one: model.tokenizer="
        )
    completed = 0
    if end is not None and end.token is not None:
        located = whole
        whole = [with_end_labels(row, tokenizer, end) for row in located]
        completed = sum(row != before for row, before in zip(whole, located, strict=True))
    cut = [Row(row.ids[:length], row.labels[:length]) for row in whole]
    kept = [
        number
        for number, row in enumerate(cut)
        if any(label != NO_LOSS for label in row.labels[1:])
    ]
    if not kept:
        raise TaskError(
            f"No conversation has an answer to train on within method.length={length} tokens."
        )
    return Encoded(
        rows=[cut[number] for number in kept],
        truncated=sum(len(whole[number].ids) > length for number in kept),
        left_out=len(conversations) - len(kept),
        completed=completed,
        empty_answers=sum(is_empty_answer(message) for each in conversations for message in each),
    )


def with_end_labels(row: Row, tokenizer: Any, end: AnswerEnd) -> Row:
    """The row with a label at the token that ends each answer.

    Where the token follows the labels of an answer, it and white space in front of it get labels. After the last answer
    of a conversation the tokens `end.closing` take the place of the white space at the end of the row.
    """
    ids, labels = list(row.ids), list(row.labels)
    for last in _last_labels(row.labels):
        if ids[last] in end.tokens:
            continue
        while is_blank(tokenizer, ids[last]) and labels[last - 1] != NO_LOSS:
            last -= 1
        if ids[last] in end.tokens:
            continue
        start = last + 1
        length = length_to_end(tokenizer, ids, start, end.tokens)
        if length:
            labels[start : start + length] = ids[start : start + length]
        elif all(is_blank(tokenizer, token) for token in ids[start:]):
            ids[start:] = end.closing
            labels[start:] = end.closing
    return Row(ids, labels)


def _last_labels(labels: list[int]) -> list[int]:
    """The positions of the last label of each answer."""
    following = [*labels[1:], NO_LOSS]
    positions = []
    for position, (label, next_label) in enumerate(zip(labels, following, strict=True)):
        if label != NO_LOSS and next_label == NO_LOSS:
            positions.append(position)
    return positions


def rows_to_count(
    config: Config, conversations: Sequence[Conversation], facts: ModelFacts
) -> list[Row]:
    """The first tokens of each conversation, with labels at the tokens of the answers."""
    tokenizer = load_tokenizer(config.model, offline=config.offline)
    with_template(tokenizer)
    return encode_all(tokenizer, conversations, min(COUNTED_LENGTH, facts.max_length)).rows


def encode(tokenizer: Any, conversations: Sequence[Conversation]) -> list[Row]:
    """Whole conversations. The answers to train on, with their end tokens, have labels.

    A chat template may mark answers ({% generation %}). Otherwise they are located by rendering the first turns. Some
    templates format earlier turns differently from the last one, for example without their reasoning. Then the text of
    the first turns is no prefix of the whole text, and the conversation is left out.
    """
    is_marked = re.search(r"{%-?\s*generation\b", tokenizer.get_chat_template())
    locate = _marked_answers if is_marked else _rendered_answers
    located = []
    for conversation in conversations:
        found = locate(tokenizer, conversation)
        if found is not None:
            located.append(found)
    if not located:
        return []
    encoded = tokenizer(
        [text for text, _ in located],
        add_special_tokens=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    rows = []
    for (_, spans), ids, offsets in zip(
        located, encoded.input_ids, encoded.offset_mapping, strict=True
    ):
        starts, ends = np.array(offsets).reshape(-1, 2).T
        learned = np.zeros(len(ids), dtype=bool)
        for first, last in spans:
            learned |= (starts < last) & (first < ends)
        rows.append(Row(ids, np.where(learned, ids, NO_LOSS).tolist()))
    return rows


Located = tuple[str, list[tuple[int, int]]]
"""The text of a conversation, and the first and last character of each answer to train on."""


def _marked_answers(tokenizer: Any, conversation: Conversation) -> Located | None:
    """By the marks of the chat template.

    None where an answer is not trained on and the template does not mark each answer once.
    """
    messages = _plain(conversation)
    text, blocks = _explained(
        conversation, tokenizer, lambda: generation_blocks(tokenizer, messages)
    )
    answers = [message for message in conversation if message["role"] == ANSWERER]
    if all(is_trained_on(answer) for answer in answers):
        return text, blocks
    if len(blocks) != len(answers):
        return None
    return text, [
        block for block, answer in zip(blocks, answers, strict=True) if is_trained_on(answer)
    ]


def _rendered_answers(tokenizer: Any, conversation: Conversation) -> Located | None:
    """By rendering the first turns. None where their text is no prefix of the whole text."""
    text = _applied(tokenizer, conversation, tokenize=False)
    spans = []
    for number, message in enumerate(conversation):
        if not is_trained_on(message):
            continue
        turns = conversation[: number + 1]
        before = _applied(tokenizer, turns[:-1], tokenize=False, add_generation_prompt=True)
        through = _applied(tokenizer, turns, tokenize=False).rstrip()
        if not (text.startswith(before) and text.startswith(through)):
            return None
        spans.append((len(before), len(through)))
    return text, spans


def _applied(tokenizer: Any, conversation: Conversation, **options: Any) -> Any:
    """The chat template applied to a conversation. Raises TaskError for one that it refuses."""
    messages = _plain(conversation)
    return _explained(
        conversation, tokenizer, lambda: tokenizer.apply_chat_template(messages, **options)
    )


def _plain(conversation: Conversation) -> list[dict[str, str]]:
    """The messages that the chat template reads, without weights."""
    return [{"role": message["role"], "content": message["content"]} for message in conversation]


def _explained(conversation: Conversation, tokenizer: Any, render: Callable[[], Any]) -> Any:
    """What `render` returns. Raises TaskError, which quotes the conversation, where the chat template refuses it."""
    try:
        return rendered(tokenizer, render)
    except ConfigError as error:
        begin = str(conversation)[:60]
        raise TaskError(f"{error}\nThe conversation begins: {begin}") from error


class Pad:
    """Pads the rows of a batch after their last token; the mask hides the padding.

    Rows without labels (`EMPTY`) are left out, except for one if there are no others. So the batch is the same for any
    number of processes, and no row is completely masked, for which attention would return NaN.
    """

    def __init__(self, pad_token: int):
        self.pad_token = pad_token

    def __call__(self, batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        rows = [row for row in batch if any(label != NO_LOSS for label in row["labels"])] or batch[
            :1
        ]
        ids, labels = [row["input_ids"] for row in rows], [row["labels"] for row in rows]
        return {
            "input_ids": padded(ids, self.pad_token),
            "labels": padded(labels, NO_LOSS),
            "attention_mask": padded([[1] * len(own) for own in ids], 0),
        }


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A data set as token ids, and the tokenizer that is saved with the model."""

    data: Data
    train: Encoded
    validation: Encoded | None
    """The optional validation set."""
    tokenizer: Any
    end: AnswerEnd
    notes: list[str]
    """What a plan and a run say about the data and the recipe, a sentence each."""


def prepare(config: Config, method: FinetuneConfig, data: Data, facts: ModelFacts) -> Prepared:
    """Encode the training and the validation conversations.

    Raises TaskError if nothing is left of one of them or the chat template refuses a conversation, ConfigError if a
    phase has no step or nothing would be trained.
    """
    tokenizer = load_tokenizer(config.model, offline=config.offline)
    with_template(tokenizer)
    length = min(method.length, facts.max_length)
    vocabulary, special = tokenizer.backend_tokenizer.to_str(), str(tokenizer.special_tokens_map)

    model_ends = end_tokens(config, tokenizer)

    def encoded() -> tuple[AnswerEnd, Encoded, Encoded | None]:
        end = rendered(tokenizer, lambda: answer_end(tokenizer, model_ends))
        held_out = encode_all(tokenizer, data.validation, length, end) if data.validation else None
        return end, encode_all(tokenizer, data.train, length, end), held_out

    # the runs of a grid often share a data set
    key = f"encoded {vocabulary} {special} {tokenizer.chat_template} {data.digest} {length} {sorted(model_ends)}"
    end, train, held_out = once(key, encoded)
    method.check_trains(len(train.rows))
    notes = method.notes(len(train.rows)) + train.notes("training")
    if held_out is not None:
        notes += held_out.notes("validation")
    if data.duplicates:
        notes.append(
            f"left out of the validation data: {data.duplicates:,} conversations that are trained on or occur twice"
        )
    if end.token is None:
        notes.append(NO_END)
    return Prepared(
        data=data, train=train, validation=held_out, tokenizer=tokenizer, end=end, notes=notes
    )
