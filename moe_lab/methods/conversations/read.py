"""Conversations to fine-tune on: the toy world's instructions, LIMA, a data set of the hub, or a file of chat rows.

A row has `messages`, [{"role": "user", "content": ...}, {"role": "assistant", ...}, ...], or LIMA's `conversations`,
the texts of user and assistant in turn.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import TaskError
from moe_lab.methods.conversations.hub import LIMA, train_files

if TYPE_CHECKING:
    from moe_lab.config.schema import Config

Conversation = list[dict[str, str]]
"""Messages with `role` and `content`."""

TOY_SIZE = 1000
"""Conversations of dataset=toy, where no number is given: as many as LIMA has."""
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

    `toy` has a validation split; of other data sets the last of these conversations are held out. Raises TaskError
    where there is none to train on, or one is malformed.
    """
    if dataset == "toy":
        return Data(train=_toy("train", size or TOY_SIZE), validation=_toy("validation", held_out))
    files, source = _files(config, dataset)
    rows = islice((row for file in files for row in _rows(file)), size)
    found = [_conversation(row, place) for row, place in rows]
    if len(found) <= held_out:
        raise TaskError(
            f"method.dataset={dataset} has {len(found)} conversations"
            + (f", and method.validation_size={held_out} holds them all out." if found else ".")
        )
    return Data(
        train=found[: len(found) - held_out], validation=found[len(found) - held_out :], source=source
    )


def _toy(split: str, count: int) -> list[Conversation]:
    from moe_lab.tasks.toy.instructions import instructions

    return [row["messages"] for row in instructions(split, count)]


def _files(config: Config, dataset: str) -> tuple[list[Path], dict[str, str] | None]:
    """The files to read, in their order, and where on the hub they are from."""
    if dataset.endswith(".jsonl"):
        path = Path(dataset).expanduser()
    elif dataset != "lima" and not re.fullmatch(r"[\w.-]+/[\w.-]+", dataset):
        raise TaskError(
            f"method.dataset={dataset} is unknown. Use toy, lima, owner/name on the hub, or the path of a .jsonl file."
        )
    elif config.data_dir is None:
        id = LIMA if dataset == "lima" else dataset
        files, commit = train_files(id, offline=config.offline)
        return files, {"data_set": id, "commit": commit}
    else:
        path = Path(config.data_dir).expanduser() / dataset.rpartition("/")[2] / "train.jsonl"
    if not path.is_file():
        raise TaskError(f"method.dataset={dataset}: there is no file {path}.")
    return [path], None


def _rows(path: Path) -> Iterator[tuple[Any, str]]:
    """The rows of a file, each with the place to name in a message."""
    try:
        if path.suffix == ".jsonl":
            with path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        yield _parsed(line, place := f"{path}, line {number}"), place
            return
        if path.suffix == ".json":
            rows = _parsed(path.read_text(encoding="utf-8"), str(path))
        else:
            from pyarrow.parquet import read_table

            rows = read_table(path).to_pylist()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {error}.") from error
    for number, row in enumerate(rows if isinstance(rows, list) else [rows], start=1):
        yield row, f"{path}, row {number}"


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise TaskError(f"{place}: no JSON ({error}).") from error


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
