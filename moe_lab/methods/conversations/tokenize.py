"""Conversations as token ids, with the loss on the tokens of the answers only.

A conversation longer than the limit keeps its first tokens. A conversation is left out, and counted, if no answer token
is left, if the assistant opens it, or if the chat template hides where its answers are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from moe_lab.errors import ConfigError, TaskError
from moe_lab.methods.conversations.read import Conversation

NO_LOSS = -100
"""Label of tokens that are read and not learned."""
EMPTY = -1
"""Number of a row with such tokens only."""


@dataclass(frozen=True)
class Row:
    """A conversation as token ids and labels of the same length."""

    ids: list[int]
    labels: list[int]


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """An encoded data set, with the number of truncated and left-out conversations."""

    rows: list[Row]
    truncated: int
    """Rows longer than the limit, of which the first tokens are kept."""
    left_out: int
    """Conversations without an answer, or whose answers begin behind the limit or are not found."""


class Rows(Dataset[dict[str, list[int]]]):
    """Rows as the Trainer takes them. Number `EMPTY` has nothing to learn: two tokens without labels."""

    def __init__(self, rows: Sequence[Row]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        if index == EMPTY:
            return {"input_ids": self.rows[0].ids[:2], "labels": [NO_LOSS] * 2}
        return {"input_ids": self.rows[index].ids, "labels": self.rows[index].labels}


def encode_all(tokenizer: Any, conversations: Sequence[Conversation], length: int) -> Encoded:
    """All conversations, cut to `length` tokens.

    Raises TaskError where none is left, or the template refuses one; ConfigError where it hides the answers of all.
    """
    begun = [each for each in conversations if each and each[0]["role"] != "assistant"]
    whole = encode(tokenizer, begun)
    if begun and not whole:
        raise ConfigError(
            "The tokenizer's chat template writes earlier turns in another way than the last one, so it cannot be told "
            "which tokens are answers. Use a tokenizer with another one: model.tokenizer="
        )
    cut = [Row(row.ids[:length], row.labels[:length]) for row in whole]
    kept = [number for number, row in enumerate(cut) if any(label != NO_LOSS for label in row.labels[1:])]
    if not kept:
        raise TaskError(f"No conversation has an answer within method.length={length} tokens.")
    return Encoded(
        rows=[cut[number] for number in kept],
        truncated=sum(len(whole[number].ids) > length for number in kept),
        left_out=len(conversations) - len(kept),
    )


def encode(tokenizer: Any, conversations: Sequence[Conversation]) -> list[Row]:
    """Whole conversations; what the assistant says, its end token included, has labels.

    Without those of which the template writes earlier turns in another way than the last one, such as without their
    reasoning.
    """
    rendered = [_answers(tokenizer, conversation) for conversation in conversations]
    found = [(text, spans) for text, spans in rendered if spans is not None]
    if not found:
        return []
    encoded = tokenizer(
        [text for text, _ in found], add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )
    rows = []
    for (_, spans), ids, offsets in zip(found, encoded.input_ids, encoded.offset_mapping, strict=True):
        starts, ends = np.array(offsets).reshape(-1, 2).T
        learned = np.zeros(len(ids), dtype=bool)
        for first, last in spans:
            learned |= (starts < last) & (first < ends)
        rows.append(Row(ids, np.where(learned, ids, NO_LOSS).tolist()))
    return rows


def _answers(tokenizer: Any, conversation: Conversation) -> tuple[str, list[tuple[int, int]] | None]:
    """The conversation as text, and where in it the answers are (the last character excluded), None if unknown."""
    text, spans = _render(tokenizer, conversation, False), []
    for number, message in enumerate(conversation):
        if message["role"] == "assistant":
            before = _render(tokenizer, conversation[:number], True)
            through = _render(tokenizer, conversation[: number + 1], False).rstrip()
            if not (text.startswith(before) and text.startswith(through)):
                return text, None
            spans.append((len(before), len(through)))
    return text, spans


def _render(tokenizer: Any, conversation: Conversation, prompt: bool) -> str:
    from moe_lab.models.chat import rendered

    options = {"tokenize": False, "add_generation_prompt": prompt}
    try:
        return rendered(tokenizer, lambda: tokenizer.apply_chat_template(conversation, **options))
    except ConfigError as error:
        begin = str(conversation)[:60]
        raise TaskError(f"{error}\nThe conversation begins: {begin}") from error


class Pad:
    """Rows of a batch padded behind their last token; the mask hides what was added.

    Rows without labels, as `EMPTY`, are left out, all but one where there are no others: the batch is the same for any
    number of processes, and no row is masked as a whole, which attention would make NaN of.
    """

    def __init__(self, pad_token: int):
        self.pad_token = pad_token

    def __call__(self, batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        rows = [row for row in batch if any(label != NO_LOSS for label in row["labels"])] or batch[:1]
        width = max(len(row["input_ids"]) for row in rows)
        added = [width - len(row["input_ids"]) for row in rows]
        ids = [row["input_ids"] + [self.pad_token] * more for row, more in zip(rows, added, strict=True)]
        labels = [row["labels"] + [NO_LOSS] * more for row, more in zip(rows, added, strict=True)]
        mask = [[1] * (width - more) + [0] * more for more in added]
        return {
            "input_ids": torch.tensor(ids),
            "labels": torch.tensor(labels),
            "attention_mask": torch.tensor(mask),
        }
