"""Conversations as token ids, with the loss only on the tokens of the answers to train on.

A conversation that is longer than the limit keeps its first tokens. A conversation is left out, and
counted, if no token of such an answer is left, if the assistant speaks first, or if the chat
template hides where its answers are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError, TaskError
from moe_lab.methods.answer_ends import AnswerEnd, is_blank, length_to_end
from moe_lab.methods.answer_spans import located
from moe_lab.methods.data_files import (
    ANSWERER,
    COUNTED_LENGTH,
    Conversation,
    is_empty_answer,
)
from moe_lab.methods.finetune_freeze.config import empty_answers_note
from moe_lab.metrics.teacher_forcing import padded
from moe_lab.models.facts import ModelFacts
from moe_lab.models.tokenizer import load_tokenizer, with_template

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

    @property
    def has_loss(self) -> bool:
        """Whether a token is trained on; the first one is not predicted."""
        return any(label != NO_LOSS for label in self.labels[1:])


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """An encoded data set, with the number of truncated and left-out conversations."""

    rows: list[Row]
    truncated: int
    """The number of rows that are longer than the limit. Their first tokens are kept."""
    left_out: int
    """The number of conversations without an answer to train on,
    or whose answers are not found or begin after the limit."""
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
                f"left out of the {what} data: {self.left_out:,} of {total:,} conversations, which "
                "have no answer to train on within method.length, begin with the assistant, or "
                "whose answers the chat template hides"
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
        end: every answer gets this end, with labels (`with_end_labels`); None: only as the template
            labels it.

    Raises TaskError if none is left or the chat template refuses one, ConfigError if it hides the
    answers of all.
    """
    # A message has a token or more: those after the first `length` are cut.
    # Locating answers is quadratic in them.
    begun = []
    empty_answers = 0
    for conversation in conversations:
        empty_answers += sum(is_empty_answer(message) for message in conversation)
        if conversation and conversation[0]["role"] != ANSWERER:
            begun.append(conversation[: length + 1])
    whole_rows = encode(tokenizer, begun)
    if begun and not whole_rows:
        raise ConfigError(
            "The chat template hides where the answers are. Use another one: model.tokenizer="
        )

    rows = []
    truncated = 0
    completed = 0
    for whole in whole_rows:
        if end is not None and end.token is not None:
            with_end = with_end_labels(whole, tokenizer, end)
            completed += with_end != whole
            whole = with_end
        row = Row(whole.ids[:length], whole.labels[:length])
        if row.has_loss:
            rows.append(row)
            truncated += len(whole.ids) > length
    if not rows:
        raise TaskError(
            f"No conversation has an answer to train on within method.length={length} tokens."
        )
    return Encoded(
        rows=rows,
        truncated=truncated,
        left_out=len(conversations) - len(rows),
        completed=completed,
        empty_answers=empty_answers,
    )


def with_end_labels(row: Row, tokenizer: Any, end: AnswerEnd) -> Row:
    """The row with a label at the token that ends each answer.

    Where the token follows the labels of an answer, it and white space in front of it get labels.
    After the last answer of a conversation the tokens `end.closing` take the place of the white
    space at the end of the row.
    """
    ids = list(row.ids)
    labels = list(row.labels)
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

    A conversation whose answers are not found (`answer_spans.py`) is left out.
    """
    located_conversations = located(tokenizer, list(conversations))
    if not located_conversations:
        return []
    encoded = tokenizer(
        [conversation.text for conversation in located_conversations],
        add_special_tokens=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    rows = []
    for conversation, ids, offsets in zip(
        located_conversations, encoded.input_ids, encoded.offset_mapping, strict=True
    ):
        starts, ends = np.array(offsets).reshape(-1, 2).T
        has_label = np.zeros(len(ids), dtype=bool)
        for first, last in conversation.answers:
            has_label |= (starts < last) & (first < ends)
        rows.append(Row(ids, np.where(has_label, ids, NO_LOSS).tolist()))
    return rows


class Pad:
    """Pads the rows of a batch after their last token; the mask hides the padding.

    Rows without labels (`EMPTY`) are left out, except for one if there are no others. So the batch
    is the same for any number of processes, and no row is completely masked, for which attention
    would return NaN.
    """

    def __init__(self, pad_token: int):
        self.pad_token = pad_token

    def __call__(self, batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        rows = []
        for row in batch:
            if any(label != NO_LOSS for label in row["labels"]):
                rows.append(row)
        if not rows:
            rows = batch[:1]
        ids = [row["input_ids"] for row in rows]
        labels = [row["labels"] for row in rows]
        return {
            "input_ids": padded(ids, self.pad_token),
            "labels": padded(labels, NO_LOSS),
            "attention_mask": padded([[1] * len(ids_of_row) for ids_of_row in ids], 0),
        }
