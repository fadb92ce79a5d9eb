"""Training data of methods: the files of a data set, their rows, and conversations to fine-tune on.

A data set is one of the hub, of `data_dir`, own files or a folder of them, generated, or what
`datasets` reads (`library_rows.py`). A conversation is a row with `messages`, [{"role": "user",
"content": ...}, {"role": "assistant", ...}, ...], with LIMA's `conversations`, the texts of user
and assistant in turn, or with `prompt` and `completion`, two texts. An answer with "weight": 0 is a
part of the prompt of later answers and is not trained on. Neither is an empty answer.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any

from moe_lab.config.paths import user_path
from moe_lab.config.schema import Config
from moe_lab.errors import MoeLabError, TaskError, reading
from moe_lab.methods.library_rows import (
    BUILDERS,
    builder_of,
    check_arguments,
    library_rows,
    rows_of_file,
)
from moe_lab.models.hub import commit_of, explain, fetch, is_offline, snapshot
from moe_lab.tasks.loading import once
from moe_lab.tasks.toy.differences import conversations
from moe_lab.tasks.toy.harm import replies_to_harm
from moe_lab.tasks.toy.instructions import instructions

TRAIN = re.compile(
    r"(?P<folder>.*/)?(train(-\d+-of-(?P<parts>\d+)(-[0-9a-f]{16})?)?|train/[^/]+)\.(jsonl|parquet)"
)
"""Files of a train split: train.jsonl, data/train-00000-of-00002.parquet, or the latter with a
hash."""
DataSet = str | dict[str, Any]
"""A name or a path, or arguments of `datasets.load_dataset`."""
FORMATS = (".jsonl", ".parquet")
"""Endings of files whose rows are read here, with the line in messages. `datasets` reads others."""
Conversation = list[dict[str, Any]]
"""Messages with `role` and `content`. An answer that is not trained on also has `weight`, 0."""
TOY_SIZES = {"toy": 1000, "toy_subtract": 5940, "toy_safe": 200, "toy_unsafe": 200}
"""Default number of conversations of the generated data sets; `toy` has as many as LIMA."""
KEY = "method.dataset"
"""The key that names a data set, for messages."""
KNOWN = {"lima": "GAIR/lima"}
"""Data sets of the hub by short name."""
COUNTED_LENGTH = 2048
"""The largest number of tokens of a conversation whose routing is counted: MoE-Bench's length in
fine-tuning."""
ROLES = ("system", "user", "assistant")
ANSWERER = "assistant"
"""The role whose messages are answers."""


def train_files(id: str, *, offline: bool, key: str = KEY) -> tuple[list[Path], str]:
    """The files of a hub data set's train split in the cache, and their commit. Missing files are
    downloaded.

    Raises TaskError if the data set does not exist, is gated, or is not in the cache while offline,
    and if its files are not exactly one complete train split.
    """
    from huggingface_hub import HfApi

    try:
        commit = commit_of(id, "dataset", offline=offline)
        folder = snapshot(id, "dataset", commit)
        only_cached = offline or is_offline()
        if only_cached:
            paths = [path for path in folder.rglob("*") if path.is_file()]
            files = [path.relative_to(folder).as_posix() for path in paths]
        else:
            files = HfApi().list_repo_files(id, repo_type="dataset", revision=commit)
        matches = []
        for name in sorted(files):
            match = TRAIN.fullmatch(name)
            if match:
                matches.append(match)
        names = [match[0] for match in matches]
        parts = int(matches[0]["parts"] or len(matches)) if matches else 0
        if len({match["folder"] for match in matches}) != 1 or len(matches) != parts:
            raise TaskError(
                f"The data set {id} needs one complete train split (train.jsonl, "
                f"data/train-00000-of-00001.parquet), and has {', '.join(names[:5]) or 'none'}. "
                f"Give a file of your own: {key}=<file>.jsonl"
            )
        fetch(id, "dataset", commit, tuple(map(escape, names)), only_cached)
    except MoeLabError:
        raise
    except Exception as error:
        raise TaskError(explain(error, id, "data set")) from error
    return [folder / name for name in names], commit


def data_files(
    config: Config,
    dataset: str,
    known: Mapping[str, str],
    generated: Iterable[str] = ("toy",),
    key: str = KEY,
) -> tuple[list[Path], dict[str, str] | None]:
    """(files of a data set in their order, id and commit of a hub data set or None).

    Of a user's folder: the files in it and below, sorted by path.

    Args:
        known: ids of the hub by short name.
        generated: names of data sets without files, for the message.
        key: the key that names the data set, for the message.

    Raises TaskError for an unknown name and for missing files.
    """
    path = user_path(dataset)
    if builder_of(path) is None:
        if dataset in known or re.fullmatch(r"\w[\w.-]*/[\w.-]+", dataset):
            path = Path(config.data_dir or "") / dataset.rpartition("/")[2] / "train.jsonl"
            if config.data_dir is None or not path.is_file():
                id = known.get(dataset, dataset)
                files, commit = train_files(id, offline=config.offline, key=key)
                return files, {"data_set": id, "commit": commit}
        elif files := sorted(file for file in path.rglob("*") if builder_of(file)):
            return files, None
        else:
            raise TaskError(
                f"{key}={dataset} is unknown. Use {', '.join([*generated, *known])}, owner/name on "
                f"the hub, a file or folder (./name) of {', '.join(BUILDERS)}, or arguments of "
                f"datasets.load_dataset: {key}.path=."
            )
    if not path.is_file():
        raise TaskError(f"{key}={dataset}: there is no file {path}.")
    return [path], None


SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character that takes two units of UTF-16. No tokenizer reads it."""


def read_rows(path: Path) -> Iterator[tuple[Any, str]]:
    """The rows of a file, each with its file and line or row for messages.

    Raises TaskError for a file that cannot be read.
    """
    if path.suffix not in FORMATS:
        yield from rows_of_file(path)
        return
    with reading(path, raises=TaskError):
        if path.suffix == ".parquet":
            from pyarrow.parquet import ParquetFile

            batches = ParquetFile(path).iter_batches(batch_size=1000)
            rows = (row for batch in batches for row in batch.to_pylist())
            yield from ((row, f"{path}, row {number}") for number, row in enumerate(rows, start=1))
            return
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                place = f"{path}, line {number}"
                with reading(place, raises=TaskError, says="is not JSON"):
                    row = json.loads(line)
                # UTF-8 has no surrogates, but an escape may be one
                if "\\u" in line and SURROGATE.search(json.dumps(row, ensure_ascii=False)):
                    raise TaskError(
                        f"{place}: half of a character (a lone surrogate such as \\ud83d) is no "
                        "text."
                    )
                yield row, place


@dataclass(frozen=True, kw_only=True)
class Data:
    """Training and validation conversations."""

    train: list[Conversation]
    validation: list[Conversation]
    source: dict[str, str] | None = None
    """Data set and commit on the hub."""
    duplicates: int = 0
    """The number of held-out conversations that were left out because they are trained on or occur
    twice."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the conversations, the same for every source of them."""
        both = {"train": self.train, "validation": self.validation}
        text = json.dumps(both, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def read_data(
    config: Config, dataset: DataSet, size: int | None = None, held_out: int = 0, key: str = KEY
) -> Data:
    """`_read`, once for a grid, whose runs often share a data set."""
    name = f"conversations {config.data_dir} {config.offline} {dataset} {size} {held_out}"
    return once(name, lambda: _read(config, dataset, size, held_out, key))


def is_generated(dataset: DataSet) -> bool:
    """Whether the conversations of a data set are drawn, and not read."""
    return isinstance(dataset, str) and dataset in TOY_SIZES


def _read(config: Config, dataset: DataSet, size: int | None, held_out: int, key: str) -> Data:
    """The first `size` conversations of a data set, or all; `held_out` of them are for validation.

    Generated data sets have a validation split of their own. From other data sets the last of the
    conversations are held out, each once and without those that are trained on. Raises TaskError if
    none is left to train on or to hold out, or one is malformed.
    """
    source = None
    if isinstance(dataset, dict):
        check_arguments(key, dataset)
        all_rows: Iterator[tuple[Any, str]] = library_rows(dataset, f"{key}.path={dataset['path']}")
    elif dataset in TOY_SIZES:
        train = _toy(dataset, "train", size or TOY_SIZES[dataset])
        return Data(train=train, validation=_toy(dataset, "validation", held_out))
    else:
        files, source = data_files(config, dataset, KNOWN, generated=TOY_SIZES, key=key)
        all_rows = (row for file in files for row in read_rows(file))
    conversations = [_conversation(row, place) for row, place in islice(all_rows, size)]
    count = len(conversations) - held_out
    if count <= 0:
        reason = ""
        if conversations:
            reason = f", and method.validation_size={held_out} holds them all out"
        raise TaskError(f"{key}={dataset} has {len(conversations)} conversations{reason}.")
    train = conversations[:count]
    validation = _new_conversations(conversations[count:], train)
    if held_out and not validation:
        raise TaskError(
            f"{key}={dataset}: method.validation_size={held_out} holds out only conversations that "
            "are trained on. Remove the duplicates, hold out more, or set it to 0."
        )
    return Data(
        train=train, validation=validation, source=source, duplicates=held_out - len(validation)
    )


def _new_conversations(
    conversations: list[Conversation], known: list[Conversation]
) -> list[Conversation]:
    """The conversations whose texts are not those of a known one, each once."""
    seen = {_texts(conversation) for conversation in known}
    new = []
    for conversation in conversations:
        texts = _texts(conversation)
        if texts not in seen:
            new.append(conversation)
        seen.add(texts)
    return new


def _texts(conversation: Conversation) -> tuple[tuple[str, str], ...]:
    """Roles and texts, without weights."""
    return tuple((message["role"], message["content"]) for message in conversation)


@cache
def _toy(dataset: str, split: str, count: int) -> list[Conversation]:
    """`count` generated conversations, drawn once per process because every training of a grid
    reads them."""
    draw: dict[str, Callable[[str, int], list[dict[str, Any]]]] = {
        "toy": instructions,
        "toy_subtract": conversations,
        "toy_safe": partial(replies_to_harm, safe=True),
        "toy_unsafe": partial(replies_to_harm, safe=False),
    }
    return [row["messages"] for row in draw[dataset](split, count)]


def _conversation(row: Any, place: str) -> Conversation:
    """The conversation of a row. Raises TaskError, which names `place`, for a row that has none."""
    try:
        messages = row.get("messages")
        if messages is None:
            texts = row.get("conversations")
            if texts is None:
                texts = [row["prompt"], row["completion"]]
            messages = []
            for number, text in enumerate(texts):
                messages.append({"role": ROLES[1 + number % 2], "content": text})
        parts = [(each["role"], each["content"], each.get("weight")) for each in messages]
    except (AttributeError, KeyError, TypeError):
        parts = [("", None, None)]
    for role, content, _ in parts:
        if role in ROLES and isinstance(content, int | float):
            raise TaskError(
                f"{place}: {content} of the {role} is a number, and a text is needed. A csv cannot "
                'tell them apart; a .jsonl can: "completion": "2".'
            )
    if not all(role in ROLES and isinstance(content, str) for role, content, _ in parts):
        raise TaskError(
            f"{place}: no conversation. A row needs `messages`, each with a role "
            f"({', '.join(ROLES)}) and a text as `content`; or `conversations`, the texts of user "
            "and assistant in turn; or the texts `prompt` and `completion`."
        )
    return [_message(role, content, weight, place) for role, content, weight in parts]


def _message(role: str, content: str, weight: Any, place: str) -> dict[str, Any]:
    """A message. `weight` is that of the file: 1 (the default) for an answer to train on, 0 for
    another message."""
    if weight not in (None, 0, 1):
        raise TaskError(
            f"{place}: weight={weight!r} of a message. Use 1 for an answer to train on, 0 for one "
            "that is only a part of the prompt, or leave it out."
        )
    if weight == 1 and role != ANSWERER:
        raise TaskError(
            f"{place}: weight={weight!r} of a message of the {role}. Only answers are trained on: "
            "leave it out."
        )
    message: dict[str, Any] = {"role": role, "content": content}
    if role == ANSWERER and (weight == 0 or is_empty_answer(message)):
        message["weight"] = 0  # an empty answer would teach the model to end at once
    return message


def is_empty_answer(message: Mapping[str, Any]) -> bool:
    """Whether a message is an answer without text."""
    return message["role"] == ANSWERER and not message["content"].strip()


def is_trained_on(message: Mapping[str, Any]) -> bool:
    """Whether a message of a conversation is an answer whose tokens have a loss."""
    return message["role"] == ANSWERER and message.get("weight") != 0
