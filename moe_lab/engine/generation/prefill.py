"""How a batch of prompts is read, before the first of its tokens is generated.

B = sequences of a batch, T = cached columns, A = sequences that still generate, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from moe_lab.engine.forward.batch import TreeRow, collate
from moe_lab.engine.forward.forward import RowForward
from moe_lab.engine.forward.kv_cache import RowCache
from moe_lab.engine.forward.token_hash import token_names
from moe_lab.engine.generation.prefix_cache import CleanPasts
from moe_lab.engine.scoring.scoring import Budget


@dataclass
class Answer:
    """A prompt, and what has been generated after it, as token ids."""

    index: int
    prompt: Sequence[int]
    document: int
    repeat: int = 0
    text: str = ""
    """Of the prompt."""
    generated: list[int] = field(default_factory=list)
    _named: tuple[int, np.int64] = (0, np.int64(0))

    @property
    def name(self) -> np.int64:
        """`prefix_names` of the newest token."""
        count, name = self._named
        if count < len(self.prompt) + len(self.generated):
            new = token_names(self.ids[count:], first=count)
            self._named = count + len(new), np.add.reduce(new, initial=name)
        return self._named[1]

    @property
    def position(self) -> int:
        """Index of the token that the next step reads."""
        return len(self.prompt) + len(self.generated) - 1

    @property
    def ids(self) -> list[int]:
        """All tokens so far."""
        return [*self.prompt, *self.generated]


class Start(NamedTuple):
    """A batch as it is before its first step."""

    cache: RowCache
    real_BT: Tensor
    """bool: which columns of the cache are no padding."""
    scores_AV: Tensor
    """After what has been read."""


Begin = Callable[[list[Answer]], Start]
"""Reads prompts, and what has been generated after them."""


@dataclass(frozen=True)
class Reading:
    """How a batch of sequences is read from their beginnings."""

    forward: RowForward
    budget: Budget
    max_new_tokens: int

    def over_pasts(self, pasts: CleanPasts, sequences: list[Answer]) -> Start:
        """Prompts up to their last token from `pasts`, right-aligned; from there on as many tokens of each."""
        forward = self.forward
        caches = pasts.of(forward, [sequence.prompt[:-1] for sequence in sequences], self.budget)
        shared = max(cache.length for cache in caches)
        rows = [TreeRow(s.ids, [[0]], len(s.prompt) - 1, s.document, s.repeat) for s in sequences]
        width = len(rows[0])
        cache = RowCache.right_aligned(caches, shared + width + self._room)
        unused_B = torch.tensor([shared - past.length for past in caches], device=forward.device)
        real_BT = torch.arange(shared + width, device=forward.device) >= unused_B[:, None]
        tokens = collate(rows, shared, forward.device)
        if not real_BT.all():
            visible = tokens.visible(shared) & real_BT[:, None]
            tokens = replace(tokens, visible_BSK=visible)
        return Start(cache, real_BT, forward.ensemble.next_scores(forward(tokens, cache)))

    def whole(self, past: RowCache | None, sequences: list[Answer]) -> Start:
        """Everything behind the past that all share, in passes of the budget."""
        forward = self.forward
        shared = past.length if past else 0
        caches, reals, scores = [], [], []
        for part in self._parts(sequences, shared):
            rows = [TreeRow(s.ids, [[0]], shared, s.document, s.repeat) for s in part]
            width = max(map(len, rows))
            alone = len(part) == len(sequences)
            capacity = shared + width + (self._room if alone else forward.row_columns)
            cache = past.expanded(len(part), capacity) if past else forward.new_cache(capacity)
            tokens = collate(rows, shared, forward.device, left=True)
            logits = forward(tokens, cache, counted=sum(map(len, rows)))
            scores.append(forward.ensemble.next_scores(logits))
            caches.append(cache)
            reals.append(
                torch.tensor([[True] * shared + [False] * (width - len(r)) + [True] * len(r) for r in rows])
            )
        if len(caches) == 1:
            cache = caches[0]
        else:
            cache = RowCache.right_aligned(caches, caches[0].length + self._room)
        real = torch.cat([torch.nn.functional.pad(part, (cache.length - part.shape[1], 0)) for part in reals])
        return Start(cache, real.to(forward.device), torch.cat(scores))

    @property
    def _room(self) -> int:
        """Columns to come: new tokens, and the rows of one of them."""
        return self.max_new_tokens + self.forward.row_columns

    def _parts(self, sequences: list[Answer], shared: int) -> Iterator[list[Answer]]:
        """Sequences of like length, as many as one pass takes."""
        ensemble = self.forward.ensemble
        limit = self.budget.tokens // (ensemble.n if ensemble.own_history else 1)
        part: list[Answer] = []
        for sequence in sequences:
            if part and (len(part[0].ids) - shared) * (len(part) + 1) > limit:
                yield part
                part = []
            part.append(sequence)
        yield part
