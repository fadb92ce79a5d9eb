"""Words and sentences from token ids alone: two small tables, computed once from a tokenizer, and
their use.

Each token has a kind, which says how its text ends. For each kind a table says which tokens begin a
new unit after it. A model keeps both tables, so it needs no tokenizer to route.

- **Words** are those of the tokenizer's own pre-tokenizer: token t begins a word after a kind if
  the pre-tokenizer splits "ending + text of t" in front of t's text, with the ending that stands
  for the kind. A boundary that depends on what follows t is not found, since a causal model does
  not know it: of two newlines, GPT-2's pattern gives the second to the word after them, and here
  both are one word.
- **Sentences** begin after a token that ends with a newline, and after one that ends with `.`, `!`
  or `?` and then closing quotes or brackets, where white space follows. Quotes and brackets may be
  tokens of their own.
- **Special tokens** (beginning, end, padding) are units of their own.

A token that begins or ends within a character (bytes of UTF-8) counts as letters there.

V = vocabulary, C = kinds, B = sequences, S = positions.
"""

import re
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from moe_lab.errors import ModelError
from moe_lab.models.designs.configuration import UNITS

SPECIAL = 0
"""The kind of special tokens, and of the place before a sequence: after it every token begins a
unit."""
TRANSPARENT = -1
"""The kind of tokens that keep the kind before them (closing quotes after the end of a
sentence)."""
UNSET = -2
"""The kind of all tokens in a model whose units were not set."""
_ENDINGS = ("a", "0", "000", " ", "\n", "'", "'s", ".", " .")
"""The ending for each kind of words: letters, digits (some patterns take three at most), white
space, newlines, an apostrophe, a contraction, another character alone and after others of its
token."""
_CONTRACTIONS = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}
_INSIDE = 1
_NEWLINE = 2
_STOP = 3
_STOP_SPACE = 4
"""The kinds of sentences: inside, or after a newline, an end, an end with white space."""
KINDS = 1 + len(_ENDINGS)
"""C: kinds of either tables, special tokens included; sentences leave some unused."""
_CLOSING = r"[\"'”’»)\]}]"
_ENDS = re.compile(rf"[.!?]{_CLOSING}*(\s*)$")


class Units(NamedTuple):
    """Where the units of a pass begin."""

    first_BS: Tensor
    """int64: the position in this pass of the first token of each token's unit; -1: it was in an
    earlier pass."""
    kind_BS: Tensor
    """int64: the kind of each token (`units.py`), by which it is decided whether the next one
    begins a unit."""
    id_BS: Tensor
    """int64: each token's id."""


class UnitTables(NamedTuple):
    """What decides where units begin."""

    kind_V: Tensor
    """int8: the kind of each token."""
    begins_CV: Tensor
    """bool: whether a token begins a unit after a token of each kind."""


def unit_tables(tokenizer: Any, kind: str) -> UnitTables:
    """The tables of a tokenizer of transformers.

    Args:
        kind: "word", "word-hash" (the same words) or "sentence".

    Raises:
        ModelError: the tokenizer has no pre-tokenizer, or one that finds no words.
    """
    require_units(tokenizer, kind)
    texts = _texts(tokenizer)
    if kind == "sentence":
        units = _sentences(texts)
    else:
        units = _words(tokenizer.backend_tokenizer.pre_tokenizer, texts)
    special_V = torch.tensor([not text for text in texts])
    kind_V = torch.tensor(units.kinds, dtype=torch.int8).masked_fill(special_V, SPECIAL)
    begins_CV = torch.ones(KINDS, len(texts), dtype=torch.bool)
    begins_CV[1 : 1 + len(units.begins)] = torch.tensor(units.begins)
    return UnitTables(kind_V, begins_CV | special_V)


def require_units(tokenizer: Any, kind: str) -> None:
    """Raise the errors of `unit_tables` without computing them."""
    if kind not in UNITS:
        raise ValueError(f"kind={kind}: choose one of {', '.join(UNITS)}.")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"{type(tokenizer).__name__} has no fast tokenizer. {_ADVICE}")
    if kind == "sentence":
        return
    if backend.pre_tokenizer is None:
        raise ModelError(f"This tokenizer has no pre-tokenizer, so it knows no words. {_ADVICE}")
    if not _splits(backend.pre_tokenizer, "a", " a"):
        raise ModelError(
            f"The pre-tokenizer of this tokenizer does not split at white space. {_ADVICE}"
        )


_ADVICE = "Words need a pre-tokenizer, such as that of a byte-level BPE. Use one, or router=token."


def _texts(tokenizer: Any) -> list[str]:
    """The text of each token after a letter; empty for special tokens."""
    backend = tokenizer.backend_tokenizer
    letter = tokenizer.encode("a", add_special_tokens=False)[-1]
    size = max(tokenizer.get_vocab().values()) + 1
    before = backend.decode([letter], skip_special_tokens=False)
    pairs = [[letter, token] for token in range(size)]
    special = set(tokenizer.all_special_ids)
    for token, added in tokenizer.added_tokens_decoder.items():
        if added.special:
            special.add(token)
    texts = []
    for token, pair_text in enumerate(backend.decode_batch(pairs, skip_special_tokens=False)):
        if token in special:
            texts.append("")
        else:
            texts.append(pair_text.removeprefix(before).replace("\ufffd", "a"))
    return texts


def _splits(pre_tokenizer: Any, before: str, text: str) -> bool:
    """Whether a pre-tokenizer splits "before + text" in front of the text."""
    pieces = pre_tokenizer.pre_tokenize_str(before + text)
    for _, (start, end) in pieces:
        is_across = start < len(before) < end
        if is_across:
            return False
    return True


class _UnitsOfTexts(NamedTuple):
    """The units of all tokens, special ones not considered."""

    kinds: list[int]
    """Of each token."""
    begins: list[list[bool]]
    """For each kind from 1 on: whether each token begins a unit after it."""


def _words(pre_tokenizer: Any, texts: list[str]) -> _UnitsOfTexts:
    """The words of a pre-tokenizer, from the text of each token."""
    kinds = [1 + _ENDINGS.index(_ending(text)) for text in texts]
    begins = []
    for ending in _ENDINGS:
        begins.append([_splits(pre_tokenizer, ending, text) for text in texts])
    return _UnitsOfTexts(kinds, begins)


def _ending(text: str) -> str:
    """The ending for the kind of this token."""
    last = text[-1:]
    if text == "'":
        return "'"
    if text.lower() in _CONTRACTIONS:
        return "'s"
    if last.isspace():
        return "\n" if last in "\r\n\v\f" else " "
    if last.isalpha():
        return "a"
    if last.isalnum():
        return "000" if len(text) > 2 and text[-3:].isdigit() else "0"
    return "." if len(text) == 1 else " ."


def _sentences(texts: list[str]) -> _UnitsOfTexts:
    """Sentences, from the text of each token."""
    nothing = [False] * len(texts)
    everything = [True] * len(texts)
    after_space = [text[:1].isspace() for text in texts]
    kinds = [_sentence_kind(text) for text in texts]
    # after the kinds _INSIDE, _NEWLINE, _STOP and _STOP_SPACE
    return _UnitsOfTexts(kinds, [nothing, everything, after_space, everything])


def _sentence_kind(text: str) -> int:
    """The kind of this token for sentences."""
    if text.endswith(("\n", "\r")):
        return _NEWLINE
    end = _ENDS.search(text)
    if end is not None:
        return _STOP_SPACE if end[1] else _STOP
    return TRANSPARENT if re.fullmatch(f"{_CLOSING}+", text) else _INSIDE


class UnitPlaces(nn.Module):
    """The tables of `units.py` as persistent buffers."""

    def __init__(self, vocab_size: int):
        super().__init__()
        self.register_buffer("kind_V", torch.full((vocab_size,), UNSET, dtype=torch.int8))
        self.register_buffer("begins_CV", torch.ones(KINDS, vocab_size, dtype=torch.bool))
        self._is_set = False

    def set(self, tables: UnitTables) -> None:
        """Take the tables of a tokenizer. Raises ValueError if its vocabulary is larger than the
        model's."""
        size = len(tables.kind_V)
        vocab_size = len(self.kind_V)
        if size > vocab_size:
            raise ValueError(
                f"The tokenizer has {size} tokens, and vocab_size={vocab_size} is smaller."
            )
        self.kind_V.fill_(SPECIAL)[:size] = tables.kind_V.to(self.kind_V.device)
        self.begins_CV.fill_(True)[:, :size] = tables.begins_CV.to(self.begins_CV.device)

    def forward(self, ids_BS: Tensor, real_BS: Tensor, last_kind_B1: Tensor | None) -> Units:
        """The units of a pass. Raises ValueError before `set`.

        Args:
            ids_BS: token ids of a pass.
            real_BS: bool; false: padding, after which every token begins a unit.
            last_kind_B1: int64, the kind of the token before them; None: there is none.
        """
        # looked up once: reading a tensor stops a GPU
        if not self._is_set and bool((self.kind_V == UNSET).any()):
            raise ValueError("Call model.set_units(unit_tables(tokenizer, model.config.router)).")
        self._is_set = True
        kind_BS = self.kind_V[ids_BS].long().masked_fill(~real_BS, SPECIAL)
        if last_kind_B1 is None:
            last_kind_B1 = torch.full_like(kind_BS[:, :1], SPECIAL)
        kind_BR = torch.cat([last_kind_B1, kind_BS], dim=1)
        kind_BR = kind_BR.gather(1, _latest(kind_BR != TRANSPARENT))
        begins_BS = self.begins_CV[kind_BR[:, :-1], ids_BS]
        return Units(_latest(begins_BS), kind_BR[:, 1:], ids_BS)


def _latest(where_BS: Tensor) -> Tensor:
    """int64 [B, S]: the latest position up to each one where it is true; -1: none."""
    position_S = torch.arange(where_BS.shape[1], device=where_BS.device)
    return torch.where(where_BS, position_S, -1).cummax(dim=1).values
