"""Generation: a batch of prompts is read before its first token, then every step adds one to each
unfinished sequence.

B = sequences of a batch, T = cached slots, A = unfinished sequences, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from moe_lab.engine.forward.batch import Group, Tokens, group_by_prefix, in_runs
from moe_lab.engine.forward.decode_step import DecodeStep
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.kv_cache import KVCache, Store
from moe_lab.engine.pass_size import CACHE_SHARE, cache_memory, sequence_bytes
from moe_lab.engine.prefill import Prefill
from moe_lab.engine.sampling import Decoding, GenerationState
from moe_lab.engine.scoring import MAX_SEQUENCES, Budget

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
    """Continue all sequences: each state gets its new tokens, in `generated`.

    Args:
        budget: the bounds of a pass.
        on_done: called with each state as soon as it ends, in any order.
        prompt_store: prompts are read without noise, and their keys and values are kept there. It
            has no effect on samples that read the prompt with noise.
    """
    store = _store_of_prompts(forward, prompt_store)
    ordered: list[GenerationState] = []
    group_of: dict[int, Group] = {}
    for group in _groups(forward, states, store):
        for i in group.members:
            ordered.append(states[i])
            group_of[states[i].index] = group
    prefill = Prefill(forward, budget, decoding.max_new_tokens, group_of, store)
    for batch in _batches(forward, ordered, group_of, budget, decoding):
        _Batch(forward, batch, prefill).run(decoding, on_done)


def _store_of_prompts(forward: EnsembleForward, given: Store | None) -> Store | None:
    """The store for prompts that are read without noise; None: prompts are read with their batch.

    Samples with their own histories and `prefill="clean"` need one, which may be empty.
    """
    ensemble = forward.ensemble
    if ensemble.cache == "none" or not forward.shares_beginnings:
        given = None
    if not ensemble.own_history:
        return given
    if ensemble.prefill == "noisy":
        return None
    return Store(0) if given is None else given


def _groups(
    forward: EnsembleForward, states: Sequence[GenerationState], store: Store | None
) -> list[Group]:
    """The sequences by the beginning that their prompts share, as indices into `states`.

    Groups are ordered by their longest prompts, and each group by the lengths of its prompts, the
    longest first. One group without a shared beginning has all sequences where a beginning cannot
    be read once for several: with a store, with own histories, and without a cache.
    """
    ensemble = forward.ensemble
    prompts = [state.prompt for state in states]
    if (
        store is not None
        or not forward.shares_beginnings
        or ensemble.own_history
        or ensemble.cache == "none"
    ):
        groups = [Group(list(range(len(prompts))), 0)]
    else:
        kinds = [forward.rotary.kind(len(prompt)) for prompt in prompts]
        groups = group_by_prefix(prompts, kinds)
    longest_first = []
    for group in groups:
        members = sorted(group.members, key=lambda i: -len(prompts[i]))
        longest_first.append(Group(members, group.shared))
    return sorted(longest_first, key=lambda group: -len(prompts[group.members[0]]))


def _batches(
    forward: EnsembleForward,
    ordered: list[GenerationState],
    group_of: dict[int, Group],
    budget: Budget,
    decoding: Decoding,
) -> Iterator[list[GenerationState]]:
    """Sequences that generate together, neighbours in `ordered`.

    A step costs little more with more sequences, so a batch takes them whatever their beginnings
    are, unless more than half of the slots of a further group would be padding.

    Args:
        ordered: the sequences of all groups, group by group.
        group_of: the group of a sequence, by the index of its state.
    """
    max_new_tokens = decoding.max_new_tokens
    most_sequences = _most_sequences(forward, ordered, budget, max_new_tokens)

    def fits(batch: list[GenerationState], state: GenerationState) -> bool:
        """Whether a batch may take one more sequence. Its first sequence is the longest."""
        if len(batch) >= most_sequences:
            return False
        if decoding.together or group_of[state.index] is group_of[batch[-1].index]:
            return True
        # at most half of a sequence's slots are padding
        slots = len(state.prompt) + max_new_tokens
        most_slots = len(batch[0].prompt) + max_new_tokens
        return 2 * slots >= most_slots

    return in_runs(ordered, fits)


def _most_sequences(
    forward: EnsembleForward, states: Sequence[GenerationState], budget: Budget, max_new_tokens: int
) -> int:
    """The number of sequences whose tokens fit a pass and whose cache fits the memory; at least
    one."""
    n = forward.ensemble.n
    longest = max((len(state.prompt) for state in states), default=0)
    slots = forward.slots(longest, max_new_tokens)
    free_bytes = int(CACHE_SHARE * cache_memory(forward.model))
    by_memory = free_bytes // sequence_bytes(forward.model, slots, n)
    by_budget = min(budget.sequences or MAX_SEQUENCES, budget.tokens // n)
    return max(1, min(by_memory, by_budget))


class _Batch:
    """Sequences that generate together, right-aligned in one cache, so that all write to the same
    slot."""

    def __init__(self, forward: EnsembleForward, states: list[GenerationState], prefill: Prefill):
        self.forward = forward
        self.states = states
        self.prefill = prefill
        self._set_active(list(range(len(states))))
        self.cache, self.real_BT, self.scores_AV = prefill(states)
        """The cached tokens, which of their slots are no padding, and the scores after the last
        ones."""
        self._padded = not bool(self.real_BT.all())
        self._in_place: DecodeStep | None = None
        """The step that writes into the cache in place, where the device has one."""

    def _set_active(self, active: list[int]) -> None:
        """The unfinished sequences. Their tensors stay the same until one of them ends."""
        self.active = active
        self._active_A = torch.tensor(active, device=self.forward.device)
        keys = []
        for state in self.states:
            keys.append((state.noise_key, state.sample_index, len(state.prompt)))
        keys_B3 = torch.tensor(keys, device=self.forward.device)
        self._key_B, self._sample_B, self._prompt_B = keys_B3.unbind(1)
        real = torch.zeros(len(self.states), 1, dtype=torch.bool)
        real[active] = True
        self._real_B1 = real.to(self.forward.device)

    def run(self, decoding: Decoding, on_done: OnDone) -> None:
        """Add tokens until each sequence has ended."""
        while True:
            unfinished = [self.states[b] for b in self.active]
            decoding.extend(unfinished, self.scores_AV)
            still_active = []
            for b, is_last in zip(self.active, decoding.ended(unfinished), strict=True):
                if is_last:
                    on_done(self.states[b])
                else:
                    still_active.append(b)
            if not still_active:
                return
            if len(still_active) < len(self.active):
                self._set_active(still_active)
            self.scores_AV = self._next_scores()

    def _next_scores(self) -> Tensor:
        """float32 [A, V]: scores after the newest token of every unfinished sequence."""
        if self.forward.ensemble.cache == "none" or self._must_read_again():
            return self._read_again()
        if len(self.active) <= len(self.states) // 2:
            self._drop_finished()
        return self._step()

    def _must_read_again(self) -> bool:
        """Whether `generate` of transformers would read some unfinished sequence without a cache
        (`RotaryHooks.reads_again`)."""
        return any(
            self.forward.rotary.reads_again(self.states[b].position + 1) for b in self.active
        )

    def _read_again(self) -> Tensor:
        """float32 [A, V]: scores after all tokens of every unfinished sequence, which are read
        without a cache."""
        self.cache = KVCache(0)
        self._forget_finished()
        self.cache, self.real_BT, scores_AV = self.prefill(self.states)
        self._padded = not bool(self.real_BT.all())
        return scores_AV

    def _drop_finished(self) -> None:
        """Remove the finished sequences from the batch and from the cache."""
        self._in_place = None
        self.cache.select(self._active_A, len(self.states))
        self.real_BT = self.real_BT[self._active_A]
        self._padded = not bool(self.real_BT.all())
        self._forget_finished()

    def _forget_finished(self) -> None:
        """Only the unfinished sequences are in the batch from now on."""
        self.states = [self.states[b] for b in self.active]
        self._set_active(list(range(len(self.states))))

    def _step(self) -> Tensor:
        """float32 [A, V]: scores after the newest token of every unfinished sequence, one new token
        of each read."""
        newest = [state.generated[-1] for state in self.states]
        positions = [state.position for state in self.states]
        if self.forward.in_place and (self._in_place is None or self._in_place.full):
            self._in_place = DecodeStep(
                self.forward,
                self.cache,
                self.real_BT,
                self._key_B,
                self._sample_B,
                self._prompt_B,
            )
        self.real_BT = torch.nn.functional.pad(self.real_BT, (0, 1), value=True)
        if self._in_place:
            unfinished = [b in self.active for b in range(len(self.states))]
            return self._in_place(newest, positions, unfinished)[self._active_A]

        id_B, position_B = torch.tensor([newest, positions], device=self.forward.device)
        sees_all_slots = len(self.states) == 1 and not self._padded
        tokens = Tokens(
            ids_BS=id_B[:, None],
            position_BS=position_B[:, None],
            visible_BSK=None if sees_all_slots else self.real_BT[:, None],
            logit_positions_M=self._active_A,
            noise_key_B=self._key_B,
            sample_index_B=self._sample_B,
            prompt_length_B=self._prompt_B,
            most_logits=1,
            real_BS=self._real_B1,
            names_BS=self._names,
            count=len(self.active),
            lengths=[position + 1 for position in positions],
        )
        return self.forward.ensemble.next_scores(self.forward(tokens, self.cache))

    def _names(self) -> np.ndarray:
        """int64 [B, 1]: `prefix_names` of the newest tokens; 0 for finished sequences."""
        names = np.zeros((len(self.states), 1), dtype=np.int64)
        names[self.active, 0] = [self.states[b].name for b in self.active]
        return names
