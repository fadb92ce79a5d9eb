"""Generation: a batch of prompts is read before its first token, then every step adds one to each unfinished sequence.

B = sequences of a batch, T = cached slots, A = unfinished sequences, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from moe_lab.engine.forward.batch import Group, Tokens, TokenTree, collate, group_by_prefix, in_runs
from moe_lab.engine.forward.decode_step import DecodeStep
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.kv_cache import KVCache, Store
from moe_lab.engine.pass_size import CACHE_SHARE, cache_memory, sequence_bytes
from moe_lab.engine.sampling import Decoding, GenerationState
from moe_lab.engine.scoring import MAX_SEQUENCES, Budget, shared_prefix

OnDone = Callable[[GenerationState], None]
"""Called with each sequence as soon as it ends, in any order."""


def generate(
    forward: EnsembleForward,
    states: list[GenerationState],
    budget: Budget,
    decoding: Decoding,
    on_done: OnDone,
    prompt_store: Store | None = None,
) -> None:
    """Continue all sequences.

    Args:
        prompt_store: prompts are read without noise, and their keys and values are kept there. It has no effect on
            samples that read the prompt with noise.
    """
    for batch, prefill in _batches(forward, states, budget, decoding, prompt_store):
        _Batch(forward, batch, prefill).run(decoding, on_done)


def _batches(
    forward: EnsembleForward,
    states: list[GenerationState],
    budget: Budget,
    decoding: Decoding,
    prompt_store: Store | None,
) -> Iterator[tuple[list[GenerationState], Prefill]]:
    """Pairs: sequences that generate together, those with a common beginning next to one another, and their prefill.

    A step costs little more with more sequences, so a batch takes them whatever their beginnings are, unless more than
    half of the slots of a further group would be padding.
    """
    ensemble = forward.ensemble
    max_new_tokens = decoding.max_new_tokens
    if ensemble.cache == "none":
        prompt_store = None
    if ensemble.own_history:
        prompt_store = (prompt_store or Store(0)) if ensemble.prefill == "clean" else None
    longest = max((len(state.prompt) for state in states), default=0)
    slots = forward.slots(longest, max_new_tokens)
    free = int(CACHE_SHARE * cache_memory(forward.model))
    fitting = free // sequence_bytes(forward.model, slots, ensemble.n)
    size = max(1, min(fitting, budget.sequences or MAX_SEQUENCES, budget.tokens // ensemble.n))
    alone = not forward.shares_beginnings
    one_group = prompt_store or alone or ensemble.own_history or ensemble.cache == "none"
    prompts = [state.prompt for state in states]
    if one_group:
        groups = [Group(list(range(len(prompts))), 0)]
    else:
        groups = group_by_prefix(prompts, [forward.rotary.kind(len(prompt)) for prompt in prompts])
    for group in groups:
        group.members.sort(key=lambda i: -len(prompts[i]))
    groups.sort(key=lambda group: -len(prompts[group.members[0]]))
    ordered = [states[i] for group in groups for i in group.members]
    group_of = {states[i].index: group for group in groups for i in group.members}
    prefill = Prefill(forward, budget, max_new_tokens, group_of, prompt_store)

    def fits(batch: list[GenerationState], state: GenerationState) -> bool:
        same_group = group_of[state.index] is group_of[batch[-1].index]
        most, own = (len(each.prompt) + max_new_tokens for each in (batch[0], state))
        return len(batch) < size and (decoding.together or same_group or 2 * own >= most)

    for batch in in_runs(ordered, fits):
        yield batch, prefill


class _Batch:
    """Sequences that generate together, right-aligned in one cache, so that all write to the same slot."""

    def __init__(self, forward: EnsembleForward, states: list[GenerationState], prefill: Prefill):
        self.forward = forward
        self.states = states
        self.prefill = prefill
        self._set_active(list(range(len(states))))
        self.cache, self.real_BT, self.scores_AV = prefill(states)
        self._padded = not bool(self.real_BT.all())
        self._in_place: DecodeStep | None = None

    def _set_active(self, active: list[int]) -> None:
        """The unfinished sequences. Their tensors stay the same until one of them ends."""
        self.active = active
        self._active_A = torch.tensor(active, device=self.forward.device)
        keys = [(state.noise_key, state.sample_index) for state in self.states]
        self._key_B, self._sample_B = torch.tensor(keys, device=self.forward.device).unbind(1)
        real = torch.zeros(len(self.states), 1, dtype=torch.bool)
        real[active] = True
        self._real_B1 = real.to(self.forward.device)

    def run(self, decoding: Decoding, on_done: OnDone) -> None:
        while True:
            unfinished = [self.states[b] for b in self.active]
            decoding.extend(unfinished, self.scores_AV)
            ends = decoding.ended(unfinished)
            ended = {b for b, is_last in zip(self.active, ends, strict=True) if is_last}
            for b in sorted(ended):
                on_done(self.states[b])
            if len(ended) == len(self.active):
                return
            if ended:
                self._set_active([b for b in self.active if b not in ended])
            self.scores_AV = self._next_scores()

    def _next_scores(self) -> Tensor:
        """float32 [A, V]: scores after the newest token of every unfinished sequence."""
        if self.forward.ensemble.cache == "none" or self._must_read_again():
            return self._read_again()
        if len(self.active) <= len(self.states) // 2:
            self._drop_finished()
        return self._step()

    def _must_read_again(self) -> bool:
        return any(
            self.forward.rotary.reads_again(self.states[b].position + 1) for b in self.active
        )

    def _read_again(self) -> Tensor:
        """float32 [A, V]: scores after all tokens of every unfinished sequence, which are read without a cache."""
        self.cache = KVCache(0)
        self.states = [self.states[b] for b in self.active]
        self._set_active(list(range(len(self.states))))
        self.cache, self.real_BT, scores_AV = self.prefill(self.states)
        self._padded = not bool(self.real_BT.all())
        return scores_AV

    def _drop_finished(self) -> None:
        self._in_place = None
        self.cache.select(self._active_A, len(self.states))
        self.real_BT = self.real_BT[self._active_A]
        self._padded = not bool(self.real_BT.all())
        self.states = [self.states[b] for b in self.active]
        self._set_active(list(range(len(self.states))))

    def _step(self) -> Tensor:
        device = self.forward.device
        newest = [state.generated[-1] for state in self.states]
        positions = [state.position for state in self.states]
        if self.forward.in_place and (self._in_place is None or self._in_place.full):
            self._in_place = DecodeStep(
                self.forward, self.cache, self.real_BT, self._key_B, self._sample_B
            )
        self.real_BT = torch.nn.functional.pad(self.real_BT, (0, 1), value=True)
        if self._in_place:
            unfinished = [b in self.active for b in range(len(self.states))]
            return self._in_place(newest, positions, unfinished)[self._active_A]
        id_B, position_B = torch.tensor([newest, positions], device=device)
        tokens = Tokens(
            ids_BS=id_B[:, None],
            position_BS=position_B[:, None],
            visible_BSK=None
            if len(self.states) == 1 and not self._padded
            else self.real_BT[:, None],
            logit_positions_M=self._active_A,
            noise_key_B=self._key_B,
            sample_index_B=self._sample_B,
            most_logits=1,
            real_BS=self._real_B1,
            names_BS=self._names,
            count=len(self.active),
            lengths=[position + 1 for position in positions],
        )
        return self.forward.ensemble.next_scores(self.forward(tokens, self.cache))

    def _names(self) -> np.ndarray:
        names = np.zeros((len(self.states), 1), dtype=np.int64)
        names[self.active, 0] = [self.states[b].name for b in self.active]
        return names


# How prompts are read: from a store of prompts, or after the beginning that they share


Beginning = tuple[tuple[int, ...], int]
"""The token ids of a prompt without its last token, and the kind of the text that it begins (`RotaryHooks.kind`)."""


def _cached(
    store: Store, forward: EnsembleForward, states: Sequence[GenerationState], budget: Budget
) -> list[KVCache]:
    """The cache of each prompt without its last token, with one sequence; it may be empty.

    Prompts that are not in the store are read.
    """
    beginnings: list[Beginning] = []
    length_of: dict[Beginning, int] = {}
    for state in states:
        length = len(state.ids)
        beginning = tuple(state.prompt[:-1]), forward.rotary.kind(length)
        beginnings.append(beginning)
        length_of[beginning] = length
    found = {each: prefix for each in beginnings if (prefix := store.get(each)) is not None}
    missing = [each for each in length_of if each not in found]
    groups = group_by_prefix([prompt for prompt, _ in missing], [kind for _, kind in missing])
    for group in groups:
        members = [missing[i] for i in group.members]
        for beginning, prefix in _read(forward, members, length_of, group, budget):
            found[beginning] = prefix
            store.add(beginning, prefix)
    return [found[each] for each in beginnings]


def _read(
    forward: EnsembleForward,
    beginnings: list[Beginning],
    length_of: dict[Beginning, int],
    group: Group,
    budget: Budget,
) -> Iterator[tuple[Beginning, KVCache]]:
    """Each prompt of a group with its cache, in passes of prompts of similar length."""
    members = sorted(beginnings, key=lambda beginning: len(beginning[0]), reverse=True)
    longest = members[0]
    prefix = shared_prefix(forward, longest[0][: group.shared], length_of[longest])
    while members:
        width = len(members[0][0]) - group.shared
        if not width:
            yield from ((beginning, forward.new_cache()) for beginning in members)
            return
        count = max(1, min(budget.tokens // width, budget.sequences or len(members)))
        batch, members = members[:count], members[count:]
        trees = [TokenTree(prompt, [], group.shared) for prompt, _ in batch]
        capacity = group.shared + width
        cache = prefix.expanded(len(batch), capacity) if prefix else forward.new_cache(capacity)
        tokens = collate(trees, group.shared, forward.device)
        lengths = [length_of[beginning] for beginning in batch]
        forward(replace(tokens, noise=False, lengths=lengths), cache)
        for b, (beginning, tree) in enumerate(zip(batch, trees, strict=True)):
            yield beginning, cache.taken(b, group.shared + len(tree))


Prefilled = tuple[KVCache, Tensor, Tensor]
"""A batch before its first step: its cache, bool [B, T] (True for slots with a token), and next-token scores [A, V]."""


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
    _prefix: tuple[tuple[Group, int] | None, KVCache | None] = (None, None)
    """The newest group, the kind of its texts, and the cache of their beginning.

    Those of other groups are not kept: they would take memory in every step.
    """

    def __call__(self, states: list[GenerationState]) -> Prefilled:
        """All tokens after the shared prefixes, in passes within the budget; or those after the stored prompts."""
        if self.prompt_store:
            return self._from_store(self.prompt_store, states)
        forward = self.forward
        caches, reals, scores = [], [], []
        limit = self.budget.tokens // (forward.ensemble.n if forward.ensemble.own_history else 1)

        def beginning(state: GenerationState) -> tuple[Group, int]:
            """What sequences of a pass share: the tokens of their beginning, and its rotary embeddings."""
            group = self.groups[state.index]
            if not group.shared:
                return group, 0
            return group, forward.rotary.kind(len(state.ids))

        def fits(part: list[GenerationState], state: GenerationState) -> bool:
            width = len(part[0].ids) - self.groups[state.index].shared
            return beginning(state) == beginning(part[0]) and width * (len(part) + 1) <= limit

        for part in in_runs(states, fits):  # of similar length
            shared_beginning = beginning(part[0])
            shared = shared_beginning[0].shared
            if shared_beginning != self._prefix[0]:
                prompt = part[0].prompt[:shared]
                self._prefix = shared_beginning, shared_prefix(forward, prompt, len(part[0].ids))
            prefix = self._prefix[1]
            trees = [TokenTree(s.ids, [[0]], shared, s.noise_key, s.sample_index) for s in part]
            width = max(map(len, trees))
            alone = len(part) == len(states)
            capacity = shared + width + (self._room if alone else forward.extra_slots)
            cache = prefix.expanded(len(part), capacity) if prefix else forward.new_cache(capacity)
            tokens = collate(trees, shared, forward.device, left=True)
            scores.append(forward.ensemble.next_scores(forward(tokens, cache)))
            caches.append(cache)
            reals.append(
                torch.tensor(
                    [[True] * shared + [False] * (width - len(r)) + [True] * len(r) for r in trees]
                )
            )
        if len(caches) == 1:
            cache = caches[0]
        else:
            longest = max(part.length for part in caches)
            cache = KVCache.right_aligned(caches, longest + self._room, keep=False)
        real = torch.cat(
            [torch.nn.functional.pad(part, (cache.length - part.shape[1], 0)) for part in reals]
        )
        return cache, real.to(forward.device), torch.cat(scores)

    def _from_store(self, store: Store, states: list[GenerationState]) -> Prefilled:
        """Cached prompts, right-aligned. The same number of tokens is read here in each sequence."""
        forward = self.forward
        caches = _cached(store, forward, states, self.budget)
        shared = max(cache.length for cache in caches)
        trees = [
            TokenTree(s.ids, [[0]], len(s.prompt) - 1, s.noise_key, s.sample_index) for s in states
        ]
        width = len(trees[0])
        cache = KVCache.right_aligned(caches, shared + width + self._room)
        unused_B = torch.tensor([shared - cache.length for cache in caches], device=forward.device)
        real_BT = torch.arange(shared + width, device=forward.device) >= unused_B[:, None]
        tokens = collate(trees, shared, forward.device)
        if not real_BT.all():
            visible = tokens.visible(shared) & real_BT[:, None]
            tokens = replace(tokens, visible_BSK=visible)
        return cache, real_BT, forward.ensemble.next_scores(forward(tokens, cache))

    @property
    def _room(self) -> int:
        """Slots for new tokens, if they are kept, and for the noisy samples of one of them."""
        kept = self.max_new_tokens if self.forward.ensemble.cache != "none" else 0
        return kept + self.forward.extra_slots
