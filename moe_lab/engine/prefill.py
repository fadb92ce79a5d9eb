"""Prefill: a batch of prompts is read before its first token is generated; the prefix cache keeps prompts.

B = sequences of a batch, T = cached slots, A = unfinished sequences, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from moe_lab.engine.forward.batch import Group, TokenTree, collate, group_by_prefix, token_names
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.kv_cache import KVCache, Store
from moe_lab.engine.scoring import Budget, shared_prefix


class PrefixCache:
    """Reads prompts without noise, and keeps their keys and values if they fit into `store`."""

    def __init__(self, store: Store[KVCache]):
        self.store = store

    def of(self, forward: EnsembleForward, prompts: Sequence[Sequence[int]], budget: Budget) -> list[KVCache]:
        """The cache of each prompt, with one sequence; it may be empty. Prompts that are not in the store are read."""
        keys = [tuple(prompt) for prompt in prompts]
        found = {key: prefix for key in keys if (prefix := self.store.get(key)) is not None}
        missing = [key for key in dict.fromkeys(keys) if key not in found]
        for group in group_by_prefix(missing):
            for key, prefix in _read(forward, [missing[i] for i in group.members], group, budget):
                found[key] = prefix
                self.store.add(key, prefix)
        return [found[key] for key in keys]


def _read(
    forward: EnsembleForward, prompts: list[tuple[int, ...]], group: Group, budget: Budget
) -> Iterator[tuple[tuple[int, ...], KVCache]]:
    """(prompt, its cache) for all of a group, in passes of prompts of similar length."""
    members = sorted(prompts, key=len, reverse=True)
    prefix = shared_prefix(forward, members[0][: group.shared])
    while members:
        width = len(members[0]) - group.shared
        if not width:
            yield from ((prompt, forward.new_cache()) for prompt in members)
            return
        count = max(1, min(budget.tokens // width, budget.sequences or len(members)))
        batch, members = members[:count], members[count:]
        trees = [TokenTree(prompt, [], group.shared) for prompt in batch]
        capacity = group.shared + width
        cache = prefix.expanded(len(batch), capacity) if prefix else forward.new_cache(capacity)
        forward(replace(collate(trees, group.shared, forward.device), noise=False), cache)
        for b, (prompt, tree) in enumerate(zip(batch, trees, strict=True)):
            yield prompt, cache.taken(b, group.shared + len(tree))


@dataclass
class GenerationState:
    """A prompt and the tokens generated after it, as token ids."""

    index: int
    """Number of the request."""
    prompt: Sequence[int]
    noise_key: int
    """`document_key` of the prompt."""
    sample_index: int = 0
    """0, 1, ... for several answers to one prompt."""
    text: str = ""
    """The prompt's text."""
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
        """Index of the newest token."""
        return len(self.prompt) + len(self.generated) - 1

    @property
    def ids(self) -> list[int]:
        """Prompt and generated tokens."""
        return [*self.prompt, *self.generated]


OnDone = Callable[[GenerationState], None]
"""Called with each sequence as soon as it ends, in any order."""


class PrefillOutput(NamedTuple):
    """A batch before its first step."""

    cache: KVCache
    real_BT: Tensor
    """bool: True for slots of the cache that hold a token."""
    scores_AV: Tensor
    """Scores of the next token."""


@dataclass(frozen=True)
class Prefill:
    """Reads batches of prompts, and of tokens generated after them."""

    forward: EnsembleForward
    budget: Budget
    max_new_tokens: int
    prefix: KVCache | None
    """The beginning that all prompts share."""
    prefix_cache: PrefixCache | None
    """Source of prompts without their last token; None: prompts are read here."""

    def __call__(self, states: list[GenerationState]) -> PrefillOutput:
        if self.prefix_cache:
            return self._from_cache(self.prefix_cache, states)
        return self._from_prefix(states)

    def _from_cache(self, prefix_cache: PrefixCache, states: list[GenerationState]) -> PrefillOutput:
        """Cached prompts, right-aligned. The same number of tokens is read here in each sequence."""
        forward = self.forward
        caches = prefix_cache.of(forward, [state.prompt[:-1] for state in states], self.budget)
        shared = max(cache.length for cache in caches)
        trees = [TokenTree(s.ids, [[0]], len(s.prompt) - 1, s.noise_key, s.sample_index) for s in states]
        width = len(trees[0])
        cache = KVCache.right_aligned(caches, shared + width + self._room)
        unused_B = torch.tensor([shared - cache.length for cache in caches], device=forward.device)
        real_BT = torch.arange(shared + width, device=forward.device) >= unused_B[:, None]
        tokens = collate(trees, shared, forward.device)
        if not real_BT.all():
            visible = tokens.visible(shared) & real_BT[:, None]
            tokens = replace(tokens, visible_BSK=visible)
        return PrefillOutput(cache, real_BT, forward.ensemble.next_scores(forward(tokens, cache)))

    def _from_prefix(self, states: list[GenerationState]) -> PrefillOutput:
        """All tokens after the shared prefix, in passes within the budget."""
        forward, prefix = self.forward, self.prefix
        shared = prefix.length if prefix else 0
        caches, reals, scores = [], [], []
        for part in self._parts(states, shared):
            trees = [TokenTree(s.ids, [[0]], shared, s.noise_key, s.sample_index) for s in part]
            width = max(map(len, trees))
            alone = len(part) == len(states)
            capacity = shared + width + (self._room if alone else forward.extra_slots)
            cache = prefix.expanded(len(part), capacity) if prefix else forward.new_cache(capacity)
            tokens = collate(trees, shared, forward.device, left=True)
            scores.append(forward.ensemble.next_scores(forward(tokens, cache)))
            caches.append(cache)
            reals.append(
                torch.tensor([[True] * shared + [False] * (width - len(r)) + [True] * len(r) for r in trees])
            )
        if len(caches) == 1:
            cache = caches[0]
        else:
            cache = KVCache.right_aligned(caches, caches[0].length + self._room, keep=False)
        real = torch.cat([torch.nn.functional.pad(part, (cache.length - part.shape[1], 0)) for part in reals])
        return PrefillOutput(cache, real.to(forward.device), torch.cat(scores))

    @property
    def _room(self) -> int:
        """Slots for new tokens, if they are kept, and for the noisy samples of one of them."""
        kept = self.max_new_tokens if self.forward.ensemble.cache != "none" else 0
        return kept + self.forward.extra_slots

    def _parts(self, states: list[GenerationState], shared: int) -> Iterator[list[GenerationState]]:
        """Sequences of similar length, as many as fit one pass."""
        ensemble = self.forward.ensemble
        limit = self.budget.tokens // (ensemble.n if ensemble.own_history else 1)
        part: list[GenerationState] = []
        for state in states:
            if part and (len(part[0].ids) - shared) * (len(part) + 1) > limit:
                yield part
                part = []
            part.append(state)
        yield part
