"""Generation: prompts are read in batches, then every step gives each unfinished sequence one token.

B = sequences of a batch, T = cached columns, A = sequences that still generate, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from moe_lab.engine.cache import RowCache
from moe_lab.engine.pasts import CleanPasts
from moe_lab.engine.prefixes import group_by_prefix
from moe_lab.engine.rows import RowForward
from moe_lab.engine.scoring import Budget, shared_past
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
    def newest(self) -> int:
        """The token that the next step reads."""
        return self.generated[-1] if self.generated else self.prompt[-1]


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
        pasts: reads prompts up to their last token without noise; by default prompts are read whole, those that begin
            alike together.
    """
    if pasts:
        longest_first = sorted(sequences, key=lambda answer: -len(answer.prompt))
        for batch in _batches(longest_first, budget, forward):
            start = _over_pasts(forward, batch, pasts, budget, max_new_tokens)
            _Batch(forward, batch, start, max_new_tokens).run(choose, finished, on_done)
        return
    for group in group_by_prefix([sequence.prompt for sequence in sequences]):
        members = sorted((sequences[i] for i in group.members), key=lambda answer: -len(answer.prompt))
        past = shared_past(forward, members[0].prompt[: group.shared])
        for batch in _batches(members, budget, forward):
            start = _read_prompts(forward, batch, past, budget, max_new_tokens)
            _Batch(forward, batch, start, max_new_tokens).run(choose, finished, on_done)


def _batches(members: list[Answer], budget: Budget, forward: RowForward) -> Iterator[list[Answer]]:
    size = budget.sequences or MAX_SEQUENCES.get(forward.device.type, 64)
    size = max(1, min(size, budget.tokens // forward.ensemble.n))
    for start in range(0, len(members), size):
        yield members[start : start + size]


class _Start(NamedTuple):
    """A batch as it is before its first step."""

    cache: RowCache
    real_BT: Tensor
    """bool: which columns of the cache are no padding."""
    scores_AV: Tensor | None
    """After the prompts; None: their last tokens are still to be read."""


def _over_pasts(
    forward: RowForward, sequences: list[Answer], pasts: CleanPasts, budget: Budget, max_new_tokens: int
) -> _Start:
    """Each prompt but its last token, right-aligned."""
    caches = pasts.of(forward, [sequence.prompt[:-1] for sequence in sequences], budget)
    width = max(cache.length for cache in caches)
    column = torch.arange(width, device=forward.device)
    unused = torch.tensor([width - cache.length for cache in caches], device=forward.device)
    cache = RowCache.right_aligned(caches, width + 1 + max_new_tokens + forward.ensemble.n)
    return _Start(cache, column >= unused[:, None], None)


def _read_prompts(
    forward: RowForward, sequences: list[Answer], past: RowCache | None, budget: Budget, max_new_tokens: int
) -> _Start:
    """Each whole prompt over the past that all share, in passes of the budget."""
    shared = past.length if past else 0
    room = max_new_tokens + forward.ensemble.n
    caches, reals, scores = [], [], []
    for part in _parts(sequences, shared, budget):
        rows = [TreeRow(s.prompt, [[0]], shared, s.document, s.repeat) for s in part]
        width = max(map(len, rows))
        alone = len(part) == len(sequences)
        capacity = shared + width + (room if alone else forward.ensemble.n)
        cache = past.expanded(len(part), capacity) if past else forward.new_cache(capacity)
        tokens = collate(rows, shared, forward.device, left=True)
        logits = forward(tokens, cache, counted=sum(map(len, rows)))
        scores.append(forward.ensemble.next_scores(logits))
        caches.append(cache)
        reals.append(
            torch.tensor([[True] * shared + [False] * (width - len(r)) + [True] * len(r) for r in rows])
        )
    cache = caches[0] if len(caches) == 1 else RowCache.right_aligned(caches, caches[0].length + room)
    real = torch.cat([torch.nn.functional.pad(part, (cache.length - part.shape[1], 0)) for part in reals])
    return _Start(cache, real.to(forward.device), torch.cat(scores))


def _parts(sequences: list[Answer], shared: int, budget: Budget) -> Iterator[list[Answer]]:
    """Prompts of like length, as many as one pass takes."""
    part: list[Answer] = []
    for sequence in sequences:
        if part and (len(part[0].prompt) - shared) * (len(part) + 1) > budget.tokens:
            yield part
            part = []
        part.append(sequence)
    yield part


class _Batch:
    """Sequences that generate together: right-aligned in one cache, so that all write the same column."""

    def __init__(self, forward: RowForward, sequences: list[Answer], start: _Start, max_new_tokens: int):
        self.forward = forward
        self.sequences = sequences
        self.max_new_tokens = max_new_tokens
        self.active = list(range(len(sequences)))
        self.cache, self.real_BT, scores = start
        self.scores_AV = self._step() if scores is None else scores

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
            if len(self.active) <= len(self.sequences) // 2:
                self._drop_finished()
            self.scores_AV = self._step()

    def _drop_finished(self) -> None:
        index = torch.tensor(self.active, device=self.forward.device)
        self.cache, self.real_BT = self.cache.select(index), self.real_BT[index]
        self.sequences = [self.sequences[b] for b in self.active]
        self.active = list(range(len(self.sequences)))

    def _step(self) -> Tensor:
        """Read the newest token of every sequence: float32 [A, V]."""
        device = self.forward.device
        self.real_BT = torch.nn.functional.pad(self.real_BT, (0, 1), value=True)
        tokens = Tokens(
            ids_BS=torch.tensor([[s.newest] for s in self.sequences], device=device),
            position_BS=torch.tensor([[s.position] for s in self.sequences], device=device),
            visible_BSK=None if self._no_padding else self.real_BT[:, None],
            wanted_M=torch.tensor(self.active, device=device),
            document_B=torch.tensor([s.document for s in self.sequences], device=device),
            repeat_B=torch.tensor([s.repeat for s in self.sequences], device=device),
        )
        return self.forward.ensemble.next_scores(self.forward(tokens, self.cache, counted=len(self.active)))

    @property
    def _no_padding(self) -> bool:
        return len(self.sequences) == 1 and bool(self.real_BT.all())
