"""Generation: prompts are read in batches, then every step gives each unfinished sequence one token.

B = sequences of a batch, T = cached columns, A = sequences that still generate, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from moe_lab.engine.forward.batch import Tokens
from moe_lab.engine.forward.forward import RowForward
from moe_lab.engine.forward.memory_bound import Store
from moe_lab.engine.forward.prefixes import Group, group_by_prefix
from moe_lab.engine.generation.prefill import Answer, Begin, Reading
from moe_lab.engine.generation.prefix_cache import CleanPasts
from moe_lab.engine.scoring.scoring import Budget, shared_past

MAX_SEQUENCES = {"cpu": 16}
"""Sequences that generate together where nothing else is asked for, by device type; 64 elsewhere."""


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
    alone = not forward.shares_beginnings
    one_group = pasts or alone or ensemble.own_history or ensemble.cache == "none"
    prompts = [sequence.prompt for sequence in sequences]
    groups = [Group(list(range(len(prompts))), 0)] if one_group else group_by_prefix(prompts)
    for group in groups:
        members = sorted((sequences[i] for i in group.members), key=lambda answer: -len(answer.prompt))
        reading = Reading(forward, budget, max_new_tokens)
        if pasts:
            begin: Begin = partial(reading.over_pasts, pasts)
        else:
            begin = partial(reading.whole, shared_past(forward, members[0].prompt[: group.shared]))
        for start in range(0, len(members), size):
            yield members[start : start + size], begin


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
            names_BS=self._names,
            count=len(self.active),
        )
        return self.forward.ensemble.next_scores(self.forward(tokens, self.cache))

    def _names(self) -> np.ndarray:
        names = np.zeros((len(self.sequences), 1), dtype=np.int64)
        names[self.active, 0] = [self.sequences[b].name for b in self.active]
        return names

    @property
    def _no_padding(self) -> bool:
        return len(self.sequences) == 1 and bool(self.real_BT.all())
