"""How the prompts of a batch are read before its first token: after the beginning that they share,
or from a store.

B = sequences of a batch, T = cached slots, A = unfinished sequences, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from moe_lab.engine.forward.batch import Group, TokenTree, collate, group_by_prefix, in_runs
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.kv_cache import KVCache, Store
from moe_lab.engine.sampling import GenerationState
from moe_lab.engine.scoring import Budget, shared_prefix


class Prefilled(NamedTuple):
    """A batch before its first step."""

    cache: KVCache
    real_BT: Tensor
    """bool: True for slots with a token."""
    scores_AV: Tensor
    """float32: scores of the next tokens."""


class SharedBeginning(NamedTuple):
    """What sequences of a pass share: the tokens of their beginning, and its rotary embeddings."""

    group: Group
    kind: int
    """`RotaryHooks.kind`; 0 where no token is shared."""


@dataclass
class Prefill:
    """Reads batches of prompts, and of tokens generated after them."""

    forward: EnsembleForward
    budget: Budget
    max_new_tokens: int
    groups: dict[int, Group]
    """The prompts with which a prompt shares its beginning, by the index of its state."""
    prompt_store: Store | None
    """Prompts without their last token; None: prompts are read here."""
    _beginning: SharedBeginning | None = None
    """That of the newest pass."""
    _prefix: KVCache | None = None
    """The cache of its tokens. Those of others are not kept: they would take memory in every
    step."""

    def __call__(self, states: list[GenerationState]) -> Prefilled:
        """All tokens after the shared prefixes, in passes within the budget; or those after the
        stored prompts."""
        if self.prompt_store is not None:
            return self._from_store(self.prompt_store, states)
        passes = list(in_runs(states, self._fits))
        parts = []
        for sequences in passes:
            room = self._room if len(passes) == 1 else self.forward.extra_slots
            parts.append(self._read(sequences, room))
        return self._joined(parts)

    def _fits(self, sequences: list[GenerationState], state: GenerationState) -> bool:
        """Whether a pass of these sequences may take one more. They are of similar length, the
        longest first."""
        first = sequences[0]
        if self._beginning_of(state) != self._beginning_of(first):
            return False
        ensemble = self.forward.ensemble
        samples = ensemble.n if ensemble.own_history else 1
        width = len(first.ids) - self.groups[state.index].shared
        return width * (len(sequences) + 1) <= self.budget.tokens // samples

    def _beginning_of(self, state: GenerationState) -> SharedBeginning:
        """The beginning that a sequence shares with others of its group."""
        group = self.groups[state.index]
        kind = self.forward.rotary.kind(len(state.ids)) if group.shared else 0
        return SharedBeginning(group, kind)

    def _read(self, sequences: list[GenerationState], room: int) -> Prefilled:
        """One pass, after the beginning that its sequences share, with `room` for further slots."""
        forward = self.forward
        prefix = self._shared_prefix(sequences[0])
        shared = self.groups[sequences[0].index].shared
        trees = []
        for state in sequences:
            trees.append(_tree(state, shared))
        width = max(len(tree) for tree in trees)
        capacity = shared + width + room
        if prefix is None:
            cache = forward.new_cache(capacity)
        else:
            cache = prefix.expanded(len(sequences), capacity)
        tokens = collate(trees, shared, forward.device, left=True)
        scores_AV = forward.ensemble.next_scores(forward(tokens, cache))

        real_BT = torch.ones(len(sequences), shared + width, dtype=torch.bool)
        for b, tree in enumerate(trees):
            padding = width - len(tree)
            real_BT[b, shared : shared + padding] = False
        return Prefilled(cache, real_BT, scores_AV)

    def _shared_prefix(self, state: GenerationState) -> KVCache | None:
        """The cache of the beginning that a sequence shares with others."""
        beginning = self._beginning_of(state)
        if beginning != self._beginning:
            prompt = state.prompt[: beginning.group.shared]
            self._beginning = beginning
            self._prefix = shared_prefix(self.forward, prompt, len(state.ids), state.noise_key)
        return self._prefix

    def _joined(self, parts: list[Prefilled]) -> Prefilled:
        """All passes as one batch. The sequences end at the same slot."""
        if len(parts) == 1:
            cache = parts[0].cache
        else:
            caches = [part.cache for part in parts]
            longest = max(part_cache.length for part_cache in caches)
            cache = KVCache.right_aligned(caches, longest + self._room, keep=False)
        real_parts = []
        for part in parts:
            unused = cache.length - part.real_BT.shape[1]
            real_parts.append(torch.nn.functional.pad(part.real_BT, (unused, 0)))
        real_BT = torch.cat(real_parts).to(self.forward.device)
        return Prefilled(cache, real_BT, torch.cat([part.scores_AV for part in parts]))

    def _from_store(self, store: Store, states: list[GenerationState]) -> Prefilled:
        """Stored prompts, right-aligned in one cache, and a pass over the tokens after them.

        A stored prompt lacks its last token. So a pass reads that token and the generated ones,
        which are as many in each sequence.
        """
        forward = self.forward
        caches = _stored_prompts(store, forward, states, self.budget)
        shared = max(cache.length for cache in caches)
        trees = []
        for state in states:
            trees.append(_tree(state, cached=len(state.prompt) - 1))
        width = len(trees[0])
        unused_B = torch.tensor([shared - cache.length for cache in caches], device=forward.device)
        real_BT = torch.arange(shared + width, device=forward.device) >= unused_B[:, None]
        cache = KVCache.right_aligned(caches, shared + width + self._room)
        tokens = collate(trees, shared, forward.device)
        if not real_BT.all():
            visible = tokens.visible(shared) & real_BT[:, None]
            tokens = replace(tokens, visible_BSK=visible)
        return Prefilled(cache, real_BT, forward.ensemble.next_scores(forward(tokens, cache)))

    @property
    def _room(self) -> int:
        """Slots for new tokens, if they are kept, and for the noisy samples of one of them."""
        if self.forward.ensemble.cache == "none":
            return self.forward.extra_slots
        return self.max_new_tokens + self.forward.extra_slots


def _tree(state: GenerationState, cached: int) -> TokenTree:
    """The tokens of a sequence after the cached ones."""
    return TokenTree(
        state.ids,
        [[0]],
        cached,
        state.noise_key,
        state.sample_index,
        prompt_length=len(state.prompt),
    )


class StoredPrompt(NamedTuple):
    """The key of a prompt in the store."""

    ids: tuple[int, ...]
    """Its tokens without the last one."""
    kind: int
    """Of the text that it begins (`RotaryHooks.kind`)."""
    noise_key: int = 0
    sample_index: int = 0
    """The keys of its tokens, where a policy may decide by them (`shares_beginnings`)."""

    def tree(self, shared: int) -> TokenTree:
        """Its tokens after those that it shares."""
        return TokenTree(
            self.ids,
            [],
            shared,
            self.noise_key,
            self.sample_index,
            prompt_length=len(self.ids) + 1,
        )


def _stored_prompts(
    store: Store, forward: EnsembleForward, states: Sequence[GenerationState], budget: Budget
) -> list[KVCache]:
    """The cache of each prompt without its last token, with one sequence; it may be empty.

    Prompts that are not in the store are read.
    """
    keys: list[StoredPrompt] = []
    length_of: dict[StoredPrompt, int] = {}
    cache_of: dict[StoredPrompt, KVCache] = {}
    for state in states:
        length = len(state.ids)
        key = StoredPrompt(tuple(state.prompt[:-1]), forward.rotary.kind(length))
        if not forward.shares_beginnings:
            key = key._replace(noise_key=state.noise_key, sample_index=state.sample_index)
        keys.append(key)
        length_of[key] = length
        stored = store.get(key)
        if stored is not None:
            cache_of[key] = stored

    missing = [key for key in length_of if key not in cache_of]
    if forward.shares_beginnings:
        groups = group_by_prefix([key.ids for key in missing], [key.kind for key in missing])
    else:
        groups = [Group([i], 0) for i in range(len(missing))]
    for group in groups:
        members = [missing[i] for i in group.members]
        for key, cache in _read_prompts(forward, members, length_of, group.shared, budget):
            cache_of[key] = cache
            store.add(key, cache)
    return [cache_of[key] for key in keys]


def _read_prompts(
    forward: EnsembleForward,
    prompts: list[StoredPrompt],
    length_of: dict[StoredPrompt, int],
    shared: int,
    budget: Budget,
) -> Iterator[tuple[StoredPrompt, KVCache]]:
    """Each prompt of a group with its cache, in passes of prompts of similar length.

    Args:
        shared: tokens that all of them begin with, which are read once.
    """
    longest_first = sorted(prompts, key=lambda prompt: -len(prompt.ids))
    longest = longest_first[0]
    prefix = shared_prefix(forward, longest.ids[:shared], length_of[longest], longest.noise_key)
    start = 0
    while start < len(longest_first):
        width = len(longest_first[start].ids) - shared
        if width == 0:
            for prompt in longest_first[start:]:
                yield prompt, forward.new_cache()
            return
        most_sequences = budget.sequences or len(longest_first)
        count = max(1, min(budget.tokens // width, most_sequences))
        batch = longest_first[start : start + count]
        start += count
        trees = [prompt.tree(shared) for prompt in batch]
        capacity = shared + width
        if prefix is None:
            cache = forward.new_cache(capacity)
        else:
            cache = prefix.expanded(len(batch), capacity)
        tokens = collate(trees, shared, forward.device)
        lengths = [length_of[prompt] for prompt in batch]
        forward(replace(tokens, noise=False, lengths=lengths), cache)
        for b, (prompt, tree) in enumerate(zip(batch, trees, strict=True)):
            yield prompt, cache.taken(b, shared + len(tree))
