"""Packed rows: the documents of a corpus, joined by the end token and cut into rows of equal
length."""

from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from moe_lab.config.progress import Progress
from moe_lab.errors import TaskError
from moe_lab.methods.pretrain.corpus import Corpus, tokenizer_identity
from moe_lab.tasks.loading import once

DOCUMENTS = 1000
"""Documents that are tokenized together."""
_packed: dict[tuple[Any, ...], tuple[np.ndarray, np.ndarray]] = {}
"""The last result of `pack_once`."""


def require_rows(corpus: Corpus, tokenizer: Any, *, held_out: int, length: int) -> None:
    """Raise TaskError for a corpus without a training row.

    Reads the validation rows and one more.
    """

    def pack_one() -> None:
        pack(corpus, tokenizer, rows=1, held_out=held_out, length=length, shown=False)

    key = f"long enough {corpus.identity} {tokenizer_identity(tokenizer)} {held_out} {length}"
    once(key, pack_one)


def pack_once(
    corpus: Corpus, tokenizer: Any, *, rows: int, held_out: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """`pack`, with the last result cached: the designs of a grid train on the same rows one after
    the other."""
    key = (corpus, tokenizer_identity(tokenizer), rows, held_out, length)
    if key not in _packed:
        _packed.clear()
        _packed[key] = pack(corpus, tokenizer, rows=rows, held_out=held_out, length=length)
    return _packed[key]


def pack(
    corpus: Corpus, tokenizer: Any, *, rows: int, held_out: int, length: int, shown: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, validation rows), int32 [rows, length] each.

    The first documents are held out, up to the end of the last validation row. Training begins with
    the next document. No more of the corpus is read than needed.

    A short corpus has fewer training rows. Raises TaskError if it has none.

    Args:
        rows: the number of training rows.
        held_out: the number of validation rows.
        length: tokens of a row.
        shown: whether a progress bar is shown.
    """
    documents = _tokenized(corpus, tokenizer)
    with Progress(rows + held_out, "packing", "row", shown=shown) as progress:
        validation = _packed_rows(documents, held_out, length, progress)
        training = _packed_rows(documents, rows, length, progress)
    if not len(training):
        raise TaskError(
            f"The corpus is too short: its first documents fill {len(validation)} of "
            f"method.validation_rows={held_out} validation rows of {length} tokens, and the "
            "documents after them no training row. Give more text or shorter documents, or lower "
            "method.validation_rows or method.sequence_length."
        )
    return training, validation


def _tokenized(corpus: Corpus, tokenizer: Any) -> Iterator[list[int]]:
    """The token ids of each document, with the end token."""
    documents = corpus.documents()
    while True:
        texts = list(islice(documents, DOCUMENTS))
        if not texts:
            return
        encoded = tokenizer(texts, add_special_tokens=False, verbose=False).input_ids
        for ids in encoded:
            yield [*ids, tokenizer.eos_token_id]


def _packed_rows(
    documents: Iterator[list[int]], most: int, length: int, progress: Progress
) -> np.ndarray:
    """int32 [rows, length]: the next documents as rows, at most `most`.

    The end of the last document is cut off.
    """
    tokens = array("i")
    count = 0
    while count < most:
        ids = next(documents, None)
        if ids is None:
            break
        tokens.extend(ids)
        full = min(most, len(tokens) // length)
        progress.update(full - count)
        count = full
    return np.frombuffer(tokens, dtype=np.int32)[: count * length].reshape(-1, length)


class PackedRows(Dataset[dict[str, torch.Tensor]]):
    """Rows in the order of a training.

    Every epoch has its own order, which depends only on (seed, epoch).
    """

    def __init__(self, rows: Any, *, seed: int, count: int):
        self.rows = rows
        self.seed = seed
        self.count = count
        self._orders: dict[int, Any] = {}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        epoch, place = divmod(index, len(self.rows))
        if epoch not in self._orders:
            generator = np.random.default_rng([self.seed, epoch])
            self._orders = {epoch: generator.permutation(len(self.rows))}
        row = torch.from_numpy(self.rows[self._orders[epoch][place]]).long()
        return {"input_ids": row, "labels": row, "row": torch.tensor(index)}
