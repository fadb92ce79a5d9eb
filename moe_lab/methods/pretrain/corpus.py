"""The text that `method=pretrain` trains on: the toy world, MiniPile, a data set of the hub, or a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import TaskError
from moe_lab.methods.data_files import data_files, read_rows

if TYPE_CHECKING:
    from moe_lab.config.schema import Config

GENERATED = {"toy": "moe_lab.tasks.toy.corpus", "toy_rules": "moe_lab.tasks.toy.rules"}
"""Modules whose `documents(seed, index, count)` draws a corpus."""
KNOWN = {"minipile": "JeanKaddour/minipile"}
"""Data sets of the hub by short name."""
GROUP = 100
"""Documents of a generated corpus that are drawn together."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """An ordered collection of documents. Those with the same documents are equal."""

    files: tuple[Path, ...] = field(compare=False)
    """Empty for a generated corpus, which has no end."""
    size: int | None
    """How many documents are used, from the first on; None: all."""
    identity: dict[str, Any] = field(hash=False)
    """What determines the documents, wherever the files are."""
    generated: str | None = field(default=None, compare=False)
    """A key of `GENERATED`; None: the documents are in files."""

    def documents(self) -> Iterator[str]:
        """The texts in their order. Raises TaskError for a row without a text."""
        if self.generated is not None:
            return islice(_generated(self.generated), self.size)
        return islice((_text(*row) for file in self.files for row in _rows(file)), self.size)


def read_corpus(config: Config, dataset: str, size: int | None) -> Corpus:
    """The corpus of `method.dataset`. Raises TaskError where there is none, or it has no text."""
    if dataset in GENERATED:
        from moe_lab.tasks.toy.world import WORLD_VERSION

        return Corpus(files=(), size=size, identity={dataset: WORLD_VERSION, "size": size}, generated=dataset)
    files, source = data_files(config, dataset, KNOWN, (".jsonl", ".txt"))
    content = source or {"sha256": _digest(files[0]), "format": files[0].suffix}  # one file of the user
    corpus = Corpus(files=tuple(files), size=size, identity={**content, "size": size})
    if not any(text.strip() for text in islice(corpus.documents(), 1000)):
        raise TaskError(f"method.dataset={dataset} has no text.")
    return corpus


def _generated(name: str) -> Iterator[str]:
    documents = import_module(GENERATED[name]).documents
    for index in count():
        yield from documents(0, index, GROUP)


def _rows(path: Path) -> Iterator[tuple[Any, str]]:
    """Rows with a text each; in a .txt file, empty lines part the documents."""
    if path.suffix != ".txt":
        yield from read_rows(path)
        return
    try:
        with path.open(encoding="utf-8") as lines:
            yield from _paragraphs(lines, path)
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read as text: {error}.") from error


def _paragraphs(lines: Iterator[str], path: Path) -> Iterator[tuple[Any, str]]:
    gathered: list[str] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            gathered.append(line)
        elif gathered:
            yield {"text": "".join(gathered).rstrip("\n")}, f"{path}, line {number}"
            gathered = []
    if gathered:
        yield {"text": "".join(gathered).rstrip("\n")}, f"{path}, end"


def _text(row: Any, place: str) -> str:
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise TaskError(f"{place}: no text. A row needs a column `text`.")
    text = str(row["text"])
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON may escape half a surrogate pair, which no tokenizer takes
        raise TaskError(f"{place}: no text ({error}).") from error
    return text


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
