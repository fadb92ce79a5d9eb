"""Conversations to fine-tune on: the toy world's instructions, LIMA, or a file of chat rows.

A row has `messages`, [{"role": "user", "content": ...}, {"role": "assistant", ...}, ...], or LIMA's `conversations`, a
list of texts that user and assistant say in turn.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import TaskError

if TYPE_CHECKING:
    from moe_lab.config import Config
    from moe_lab.methods.finetune_freeze.recipe import FinetuneConfig

Conversation = list[dict[str, str]]
"""Messages with `role` and `content`."""

TOY_SIZE = 1000
"""Conversations of dataset=toy, where no number is given: as many as LIMA has."""
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is trained on, and what the training is measured on."""

    train: list[Conversation]
    validation: list[Conversation]
    """Never trained on."""

    @property
    def digest(self) -> str:
        """SHA-256 of both."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def read_data(config: Config, recipe: FinetuneConfig) -> Data:
    """The first `dataset_size` conversations of a data set, or all.

    `toy` has a validation split; of other data sets the last of these conversations are held out. Raises TaskError
    where there is none to train on, or one is malformed.
    """
    dataset, size, held_out = recipe.dataset, recipe.dataset_size, recipe.held_out
    if dataset == "toy":
        return Data(train=_toy("train", size or TOY_SIZE), validation=_toy("validation", held_out))
    found = _read(_file(config, dataset), size)
    if len(found) <= held_out:
        raise TaskError(
            f"method.dataset={dataset} has {len(found)} conversations"
            + (f", and method.validation_size={held_out} holds them all out." if found else ".")
        )
    return Data(train=found[: len(found) - held_out], validation=found[len(found) - held_out :])


def _toy(split: str, count: int) -> list[Conversation]:
    from moe_lab.tasks.toy.instructions import instructions

    return [row["messages"] for row in instructions(split, count)]


def _file(config: Config, dataset: str) -> Path:
    if dataset == "lima":
        if config.data_dir is None:
            raise TaskError(
                "method.dataset=lima is read from <data_dir>/lima/train.jsonl. Give data_dir=, or a file: "
                "method.dataset=<file>.jsonl"
            )
        path = Path(config.data_dir).expanduser() / "lima" / "train.jsonl"
    elif dataset.endswith(".jsonl"):
        path = Path(dataset).expanduser()
    else:
        raise TaskError(f"method.dataset={dataset} is unknown. Use toy, lima, or the path of a .jsonl file.")
    if not path.is_file():
        raise TaskError(f"method.dataset={dataset}: there is no file {path}.")
    return path


def _read(path: Path, size: int | None) -> list[Conversation]:
    found: list[Conversation] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if size is not None and len(found) == size:
                    break
                if line.strip():
                    found.append(_conversation(line, f"{path}, line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {error}.") from error
    return found


def _conversation(line: str, place: str) -> Conversation:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TaskError(f"{place}: no JSON ({error}).") from error
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
