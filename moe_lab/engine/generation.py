"""Generation: prompts are read in batches, then every step gives each unfinished sequence one token.

B = sequences of a batch, T = cached columns, A = sequences that still generate, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from moe_lab.engine.cache import RowCache
from moe_lab.engine.pasts import CleanPasts
from moe_lab.engine.prefixes import Group, group_by_prefix
from moe_lab.engine.rows import RowForward
from moe_lab.engine.scoring import Budget, shared_past
from moe_lab.engine.store import Store
from moe_lab.engine.tokens import Tokens, TreeRow, collate

MAX_SEQUENCES = {"cpu": 16}
"""Sequences that generate together where nothing else is asked for, by device type; 64 elsewhere."""


@dataclass
class Answer:
    """A prompt, and what has been generated after it, as token ids."""

    index: int
    prompt: Sequence[int]
    document: int
    repeat: int = 0
    generated: list[int] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Index of the token that the next step reads."""
        return len(self.prompt) + len(self.generated) - 1

    @property
    def ids(self) -> list[int]:
        """All tokens so far."""
        return [*self.prompt, *self.generated]


Choose = Callable[[Tensor, list[Answer]], list[int]]
"""(`Ensemble.next_scores` [A, V], the answers they continue) -> the next token of each."""
Finished = Callable[[list[int]], bool]
"""Whether a sequence with these generated tokens ends here."""


def generate(
    forward: RowForward,
    sequences: list[Answer],
    budget: Budget,
    choose: Choose,
    finished: Finished,
    max_new_tokens: int,
    on_done: Callable[[Answer], None],
    pasts: CleanPasts | None = None,
) -> None:
    """Continue all sequences; `on_done` is called for each as soon as it ends, in any order.

    Args:
        pasts: where prompts' clean pasts come from, if they are to be kept; rows with histories of their own that read
            the prompt with noise have none.
    """
    for batch, begin in _batches(forward, sequences, budget, max_new_tokens, pasts):
        _Batch(forward, batch, begin, max_new_tokens).run(choose, finished, on_done)


def _batches(
    forward: RowForward,
    sequences: list[Answer],
    budget: Budget,
    max_new_tokens: int,
    pasts: CleanPasts | None,
) -> Iterator[tuple[list[Answer], Begin]]:
    """Sequences that generate together, longest first, and how their prompts are read."""
    ensemble = forward.ensemble
    if ensemble.cache == "none":
        pasts = None
    if ensemble.own_history:
        pasts = (pasts or CleanPasts(Store(0))) if ensemble.prefill == "clean" else None
    size = budget.sequences or MAX_SEQUENCES.get(forward.device.type, 64)
    size = max(1, min(size, budget.tokens // ensemble.n))
    one_group = pasts or ensemble.own_history or ensemble.cache == "none"
    prompts = [sequence.prompt for sequence in sequences]
    groups = [Group(list(range(len(prompts))), 0)] if one_group else group_by_prefix(prompts)
    for group in groups:
        members = sorted((sequences[i] for i in group.members), key=lambda answer: -len(answer.prompt))
        reading = _Reading(forward, budget, max_new_tokens)
        if pasts:
            begin: Begin = partial(reading.over_pasts, pasts)
        else:
            begin = partial(reading.whole, shared_past(forward, members[0].prompt[: group.shared]))
        for start in range(0, len(members), size):
            yield members[start : start + size], begin


class _Start(NamedTuple):
    """A batch as it is before its first step."""

    cache: RowCache
    real_BT: Tensor
    """bool: which columns of the cache are no padding."""
    scores_AV: Tensor
    """After what has been read."""


Begin = Callable[[list[Answer]], _Start]
"""Reads prompts, and what has been generated after them."""


@dataclass(frozen=True)
class _Reading:
    """How a batch of sequences is read from their beginnings."""

    forward: RowForward
    budget: Budget
    max_new_tokens: int

    def over_pasts(self, pasts: CleanPasts, sequences: list[Answer]) -> _Start:
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
        return _Start(cache, real_BT, forward.ensemble.next_scores(forward(tokens, cache)))

    def whole(self, past: RowCache | None, sequences: list[Answer]) -> _Start:
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
        return _Start(cache, real.to(forward.device), torch.cat(scores))

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


class _Batch:
    """Sequences that generate together: right-aligned in one cache, so that all write the same column."""

    def __init__(self, forward: RowForward, sequences: list[Answer], begin: Begin, max_new_tokens: int):
        self.forward = forward
        self.sequences = sequences
        self.begin = begin
        self.max_new_tokens = max_new_tokens
        self.active = list(range(len(sequences)))
        self.cache, self.real_BT, self.scores_AV = begin(sequences)

    def run(self, choose: Choose, finished: Finished, on_done: Callable[[Answer], None]) -> None:
        while True:
            going = [self.sequences[b] for b in self.active]
            for sequence, token in zip(going, choose(self.scores_AV, going), strict=True):
                sequence.generated.append(token)
            ended = {
                b
                for b in self.active
                if len(self.sequences[b].generated) >= self.max_new_tokens
                or finished(self.sequences[b].generated)
            }
            for b in sorted(ended):
                on_done(self.sequences[b])
            self.active = [b for b in self.active if b not in ended]
            if not self.active:
                return
            if self.forward.ensemble.cache == "none":
                self.scores_AV = self.begin([self.sequences[b] for b in self.active]).scores_AV
                continue
            if len(self.active) <= len(self.sequences) // 2:
                self._drop_finished()
            self.scores_AV = self._step()

    def _drop_finished(self) -> None:
        index = torch.tensor(self.active, device=self.forward.device)
        self.cache, self.real_BT = self.cache.select(index, len(self.sequences)), self.real_BT[index]
        self.sequences = [self.sequences[b] for b in self.active]
        self.active = list(range(len(self.sequences)))

    def _step(self) -> Tensor:
        """Read the newest token of every sequence: float32 [A, V]."""
        device = self.forward.device
        active_B1 = torch.zeros(len(self.sequences), 1, dtype=torch.bool, device=device)
        active_B1[self.active] = True
        self.real_BT = torch.nn.functional.pad(self.real_BT, (0, 1), value=True)
        tokens = Tokens(
            ids_BS=torch.tensor([[s.generated[-1]] for s in self.sequences], device=device),
            position_BS=torch.tensor([[s.position] for s in self.sequences], device=device),
            visible_BSK=None if self._no_padding else self.real_BT[:, None],
            wanted_M=torch.tensor(self.active, device=device),
            document_B=torch.tensor([s.document for s in self.sequences], device=device),
            repeat_B=torch.tensor([s.repeat for s in self.sequences], device=device),
            real_BS=active_B1,
        )
        return self.forward.ensemble.next_scores(self.forward(tokens, self.cache, counted=len(self.active)))

    @property
    def _no_padding(self) -> bool:
        return len(self.sequences) == 1 and bool(self.real_BT.all())
