"""Conversations to fine-tune on: the toy world's instructions or subtractions, LIMA, a data set of the hub, or a
file of chat rows.

A row has `messages`, [{"role": "user", "content": ...}, {"role": "assistant", ...}, ...], or LIMA's `conversations`,
the texts of user and assistant in turn.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from moe_lab.errors import TaskError
from moe_lab.methods.data_files import data_files, read_rows

if TYPE_CHECKING:
    from moe_lab.config.schema import Config

Conversation = list[dict[str, str]]
"""Messages with `role` and `content`."""

TOY_SIZES = {"toy": 1000, "toy_subtract": 5940}
"""Conversations of the generated data sets, where no number is given; `toy` has as many as LIMA."""
KNOWN = {"lima": "GAIR/lima"}
"""Data sets of the hub by short name."""
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, kw_only=True)
class Data:
    """Training and validation conversations."""

    train: list[Conversation]
    validation: list[Conversation]
    """Never trained on."""
    source: dict[str, str] | None = None
    """Data set and commit on the hub."""

    @property
    def digest(self) -> str:
        """SHA-256 of the conversations, wherever they are from."""
        both = {"train": self.train, "validation": self.validation}
        text = json.dumps(both, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def read_data(config: Config, dataset: str, size: int | None = None, held_out: int = 0) -> Data:
    """The first `size` conversations of a data set, or all; `held_out` of them are for validation.

    Generated data sets have a validation split; of other ones the last of these conversations are held out. Raises
    TaskError where there is none to train on, or one is malformed.
    """
    if dataset in TOY_SIZES:
        train = _toy(dataset, "train", size or TOY_SIZES[dataset])
        return Data(train=train, validation=_toy(dataset, "validation", held_out))
    files, source = data_files(config, dataset, KNOWN, (".jsonl",), TOY_SIZES)
    rows = islice((row for file in files for row in read_rows(file)), size)
    found = [_conversation(row, place) for row, place in rows]
    if len(found) <= held_out:
        raise TaskError(
            f"method.dataset={dataset} has {len(found)} conversations"
            + (f", and method.validation_size={held_out} holds them all out." if found else ".")
        )
    return Data(
        train=found[: len(found) - held_out], validation=found[len(found) - held_out :], source=source
    )


@cache
def _toy(dataset: str, split: str, count: int) -> list[Conversation]:
    """Drawn once in a process: a grid of trainings reads them again and again."""
    from moe_lab.tasks.toy.differences import conversations
    from moe_lab.tasks.toy.instructions import instructions

    draw = {"toy": instructions, "toy_subtract": conversations}[dataset]
    return [row["messages"] for row in draw(split, count)]


def _conversation(row: Any, place: str) -> Conversation:
    if isinstance(row, dict) and isinstance(row.get("messages"), list):
        return [_message(message, place) for message in row["messages"]]
    if isinstance(row, dict) and isinstance(row.get("conversations"), list):
        return [_turn(number, text, place) for number, text in enumerate(row["conversations"])]
    raise TaskError(
        f"{place}: no conversation. A row needs `messages`, a list of roles and contents, or `conversations`, a list "
        "of texts that user and assistant say in turn."
    )


def _message(message: Any, place: str) -> dict[str, str]:
    role, content = (
        (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
    )
    if role not in ROLES or not isinstance(content, str):
        raise TaskError(f"{place}: a message needs a role ({', '.join(ROLES)}) and a text as its content.")
    return {"role": role, "content": content}


def _turn(number: int, text: Any, place: str) -> dict[str, str]:
    if not isinstance(text, str):
        raise TaskError(f"{place}: `conversations` must be a list of texts.")
    return {"role": ROLES[1 + number % 2], "content": text}
