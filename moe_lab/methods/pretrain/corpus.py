"""The training data of `method=pretrain`: a corpus and its tokenizer.

The corpus is the toy world, MiniPile, a data set of the hub, or files. The tokenizer is that of
`model=`, or a byte-level BPE that is trained on the corpus. `packing.py` cuts the corpus into rows.

Of files, empty documents and all but the first of equal documents are left out: otherwise the
validation rows could consist of end tokens, or have documents that are trained on.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from typing import Any

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message
from moe_lab.errors import ModelError, TaskError
from moe_lab.methods.data_files import KEY, DataSet, data_files, read_rows
from moe_lab.methods.library_rows import check_arguments, library_identity, library_rows
from moe_lab.methods.pretrain.config import left_out_note
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.tasks.loading import once
from moe_lab.tasks.toy.world import WORLD_VERSION

GENERATED = {"toy": "moe_lab.tasks.toy.corpus", "toy_rules": "moe_lab.tasks.toy.rules"}
"""Modules whose `documents(seed, index, count)` draws a corpus."""
KNOWN = {"minipile": "JeanKaddour/minipile"}
"""Data sets of the hub by short name."""
GROUP = 100
"""Documents of a generated corpus that are drawn together."""
END = "<|endoftext|>"
SAMPLE = 20_000
"""Documents that a tokenizer is trained on."""
LARGE = 2**30
"""Bytes of files that take seconds to read, so that the command says what it does."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """The documents of a corpus that are neither trained on nor held out."""

    numbers: frozenset[int] = frozenset()
    """Their places in the files, from 0 on."""
    empty: int = 0
    """The number of documents without text."""
    duplicates: int = 0
    """The number of documents with the text of an earlier one, white space around it aside."""

    def counts(self) -> dict[str, int]:
        """The numbers for files and identities."""
        return {"empty": self.empty, "duplicates": self.duplicates}


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """An ordered collection of documents. Two with the same documents are equal."""

    files: tuple[Path, ...] = field(compare=False)
    """Empty for a generated corpus, which is endless, and for one that `datasets` reads."""
    size: int | None
    """The number of documents, from the first on, with those that are left out; None: all."""
    identity: dict[str, Any] = field(hash=False)
    """All that determines the documents, without paths."""
    generated: str | None = field(default=None, compare=False)
    """A key of `GENERATED`; None: the documents are in files."""
    arguments: dict[str, Any] | None = field(default=None, compare=False)
    """Arguments of `datasets.load_dataset`, if that reads the documents."""
    left_out: LeftOut = field(default=LeftOut(), compare=False)
    """Nothing of a generated corpus."""

    def documents(self) -> Iterator[str]:
        """The texts in their order, without those that are left out.

        Raises TaskError for a row without a text.
        """
        for number, text in enumerate(islice(self._all(), self.size)):
            if number not in self.left_out.numbers:
                yield text

    def without_empty_and_duplicates(self) -> "Corpus":
        """The corpus without these documents. Reads all of it."""
        identity = json.dumps(self.identity, sort_keys=True)
        left_out = once(f"documents left out of {identity}", self._find_left_out)
        if not left_out.numbers:
            return self
        content = self.identity | {"left_out": left_out.counts()}
        return replace(self, left_out=left_out, identity=content)

    def _find_left_out(self) -> LeftOut:
        size = sum(file.stat().st_size for file in self.files)
        if size >= LARGE:
            print_message(
                f"Looking for empty and duplicate documents in {size / 2**30:.1f} GiB of training "
                "data."
            )
        digests: set[bytes] = set()
        numbers = set()
        empty = 0
        for number, text in enumerate(self.documents()):
            content = text.strip()
            if not content:
                numbers.add(number)
                empty += 1
                continue
            digest = hashlib.blake2b(content.encode(), digest_size=16).digest()
            if digest in digests:
                numbers.add(number)
            digests.add(digest)
        return LeftOut(numbers=frozenset(numbers), empty=empty, duplicates=len(numbers) - empty)

    @property
    def notes(self) -> list[str]:
        """What a plan and a run say about the data, a sentence each."""
        return [left_out_note(self.left_out.counts())] if self.left_out.numbers else []

    def _all(self) -> Iterator[str]:
        if self.generated is not None:
            draw = import_module(GENERATED[self.generated]).documents
            for index in count():
                yield from draw(0, index, GROUP)
        for row, place in self._rows():
            if not isinstance(row, dict) or not isinstance(row.get("text"), str):
                raise TaskError(f"{place}: no text. A row needs a column `text`.")
            yield row["text"]

    def _rows(self) -> Iterator[tuple[Any, str]]:
        if self.arguments is not None:
            yield from library_rows(self.arguments, f"{KEY}.path={self.arguments['path']}")
        for file in self.files:
            yield from read_rows(file)


def read_corpus(config: Config, dataset: DataSet, size: int | None) -> Corpus:
    """The corpus of `method.dataset`. Raises TaskError if it is missing or has no text."""
    if isinstance(dataset, dict):
        check_arguments(KEY, dataset)
        identity = library_identity(dataset, offline=config.offline) | {"size": size}
        corpus = Corpus(files=(), size=size, identity=identity, arguments=dataset)
    elif dataset in GENERATED:
        identity = {dataset: WORLD_VERSION, "size": size}
        return Corpus(files=(), size=size, identity=identity, generated=dataset)
    else:
        files, source = data_files(config, dataset, KNOWN)
        content = _content_of(files) if source is None else source
        corpus = Corpus(files=tuple(files), size=size, identity={**content, "size": size})
    corpus = corpus.without_empty_and_duplicates()
    if next(corpus.documents(), None) is None:
        raise TaskError(f"method.dataset={dataset} has no text.")
    return corpus


def _content_of(files: Sequence[Path]) -> dict[str, Any]:
    """The identity of files by their content, without their names."""
    digests = []
    for path in files:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        digests.append({"sha256": digest, "format": path.suffix})
    if len(digests) == 1:
        return digests[0]
    return {"files": digests}


def tokenizer_of(config: Config, corpus: Corpus) -> Any:
    """The tokenizer. Raises ModelError for one without an end-of-sequence token."""
    if config.method.tokenizer == "train":
        return _train(corpus, config.method.vocab_size)
    tokenizer = load_tokenizer(config.model, offline=config.offline)
    if tokenizer.eos_token_id is None:
        raise ModelError(
            f"The tokenizer of model={config.model.name} has no token for the end of a document "
            "(eos_token). Use another one, or method.tokenizer=train."
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def tokenizer_identity(tokenizer: Any) -> str:
    """SHA-256 of all that determines its tokens; without padding and truncation,
    which calls change."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    backend["padding"] = None
    backend["truncation"] = None
    text = json.dumps([backend, tokenizer.special_tokens_map], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=4)  # the runs of a grid share a tokenizer
def _train(corpus: Corpus, vocabulary: int) -> Any:
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        islice(corpus.documents(), SAMPLE),
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[END],
        show_progress=False,
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, bos_token=END, eos_token=END, pad_token=END
    )
