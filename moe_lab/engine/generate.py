"""Generation: a batch of prompts is prefilled, then every step adds one token to each unfinished sequence.

With an adaptive ensemble, `AdaptiveStep` adds noisy samples where the clean sample is unsure.

B = sequences of a batch, T = cached slots, A = unfinished sequences, U = unsure ones among them, R = the most noisy
samples of a sequence, M = sequences with n samples, V = vocabulary, D = hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from moe_lab.engine.forward.batch import Group, Tokens, group_by_prefix
from moe_lab.engine.forward.ensemble import Ensemble, unsureness
from moe_lab.engine.forward.forward import EnsembleForward, RecordingForward
from moe_lab.engine.forward.kv_cache import KVCache, SelectedKVLayer, Store, token_bytes
from moe_lab.engine.forward.layers import LayerMasks
from moe_lab.engine.forward.suffix_forward import SuffixBatch, SuffixForward
from moe_lab.engine.prefill import GenerationState, OnDone, Prefill, PrefixCache
from moe_lab.engine.sampling import Decoding
from moe_lab.engine.scoring import Budget, shared_prefix
from moe_lab.models.memory import free_memory
from moe_lab.routing import Router, Routing, routed
from moe_lab.routing.noise import NoisyTokens


class AdaptiveStep:
    """Replaces the base model's scores of unsure sequences by those of their samples.

    Args:
        ensemble: an adaptive one.
    """

    def __init__(self, model: nn.Module, ensemble: Ensemble):
        self.ensemble = ensemble
        self.clean = RecordingForward(model, ensemble.first_noisy)
        """Reads prompts and new tokens."""
        self.noisy = SuffixForward(model, ensemble.first_noisy)
        self._in_noisy_pass = False

    @contextmanager
    def opened(self) -> Iterator[RecordingForward]:
        """Inside the context this step can be called; yields `clean`, with its hooks installed.

        The policy is installed once for all steps, and acts in noisy passes alone.
        """
        with routed(self.noisy.model, self._route, self.noisy.first_moe), self.clean as clean:
            yield clean

    @contextmanager
    def _noisy_pass(self) -> Iterator[None]:
        self._in_noisy_pass = True
        try:
            yield
        finally:
            self._in_noisy_pass = False

    def _route(self, router: Router, routing: Routing) -> Routing | None:
        assert self.ensemble.routing is not None
        return self.ensemble.routing(router, routing) if self._in_noisy_pass else None

    @property
    def tokens_in(self) -> int:
        """Tokens put through the model so far, routing samples included, padding excluded."""
        return self.clean.tokens_in + self.noisy.tokens_in

    @torch.inference_mode()
    def __call__(
        self,
        states: Sequence[GenerationState],
        sequence_A: Tensor,
        cache: KVCache,
        real_BT: Tensor,
        logits_AV: Tensor,
    ) -> Tensor:
        """float32 [A, V]: the scores of the next tokens. Called inside `opened`, after a pass of `clean`.

        Args:
            states: the A unfinished sequences.
            sequence_A: their numbers in the batch.
            cache: of the batch; the newest token of each sequence is in its last slot.
            real_BT: True for slots of the cache that hold a token.
            logits_AV: the base model's, as it ran before.
        """
        # the clean pass has already computed all layers up to the fork: noisy samples start from its hidden states
        fork_AD, _ = self.clean.recorded()
        assert self.ensemble.adaptive is not None
        samples_A = self.ensemble.adaptive.samples_of(unsureness(logits_AV))
        scores_AV = logits_AV.clone()
        unsure_U = (samples_A > 1).nonzero()[:, 0]
        if not len(unsure_U):
            return scores_AV
        unsure = [states[u] for u in unsure_U.tolist()]
        noisy_U = samples_A[unsure_U] - 1
        with self.clean.without_hooks(), self.noisy.routed(None), self._noisy_pass():
            logits = self._noisy_logits(
                unsure, noisy_U, sequence_A[unsure_U], cache, real_BT, fork_AD[unsure_U]
            )
        for n in set(samples_A.tolist()) - {1}:
            same = (noisy_U == n - 1).nonzero()[:, 0]
            noisy_MmV = torch.stack([logits[u] for u in same.tolist()])
            logits_MnV = torch.cat([logits_AV[unsure_U[same], None], noisy_MmV], dim=1)
            scores_AV[unsure_U[same]] = self.ensemble.first(n).next_scores(logits_MnV)
        return scores_AV

    def _noisy_logits(
        self,
        states: list[GenerationState],
        noisy_U: Tensor,
        sequence_U: Tensor,
        cache: KVCache,
        real_BT: Tensor,
        fork_UD: Tensor,
    ) -> tuple[Tensor, ...]:
        """Logits of the noisy samples of each sequence, `noisy_U` many, in one pass: each [samples, V]."""
        device = fork_UD.device
        U, R = len(states), int(noisy_U.max())
        history_UT = real_BT[sequence_U]
        history_UT[:, -1] = False  # a sample attends to itself instead of the newest token
        itself = torch.eye(R, dtype=torch.bool, device=device).expand(U, -1, -1)
        visible = torch.cat([history_UT[:, None].expand(-1, R, -1), itself], dim=-1)
        real_UR = torch.arange(R) < noisy_U[:, None]

        def spread(values: list[int]) -> Tensor:
            """int64, each value once for every noisy sample."""
            return torch.tensor(values).repeat_interleave(noisy_U).to(device)

        position = [state.position for state in states]
        index = real_UR.reshape(-1).nonzero()[:, 0].to(device)
        assert self.ensemble.routing is not None
        self.ensemble.routing.expect(
            NoisyTokens(
                index=index,
                document=spread([state.noise_key for state in states]),
                repeat=spread([state.sample_index for state in states]),
                row=index % R + 1,
                position=spread(position),
            )
        )
        logits = self.noisy(
            SuffixBatch(
                hidden_BSD=fork_UD[:, None].expand(-1, R, -1),
                position_BS=torch.tensor(position, device=device)[:, None].expand(-1, R),
                masks=LayerMasks(visible, self.noisy.model.dtype),
                layers=[SelectedKVLayer(layer, sequence_U) for layer in cache.layers],
                logits_at=index,
                count=len(index),
            )
        )
        return logits.split(noisy_U.tolist())


MAX_SEQUENCES = 64
"""Default number of sequences that generate together: on a CPU 64 take 40% less time than 16 (docs/benchmarks.md)."""
CACHE_SHARE = 0.5
"""Of the free memory, for the keys and values of the sequences that generate together."""


def generate(
    forward: EnsembleForward,
    states: list[GenerationState],
    budget: Budget,
    decoding: Decoding,
    on_done: OnDone,
    prefix_cache: PrefixCache | None = None,
    adaptive: AdaptiveStep | None = None,
) -> None:
    """Continue all sequences.

    Args:
        prefix_cache: reads the prompts without noise and caches their keys and values. It has no effect on samples that
            read the prompt with noise.
        adaptive: adds the noisy samples of unsure sequences; `forward` is then its `clean`.
    """
    n = adaptive.ensemble.n if adaptive else forward.ensemble.n
    for batch, prefill in _batches(forward, states, budget, decoding.max_new_tokens, prefix_cache, n):
        _Batch(forward, batch, prefill, adaptive).run(decoding, on_done)


def _batches(
    forward: EnsembleForward,
    states: list[GenerationState],
    budget: Budget,
    max_new_tokens: int,
    prefix_cache: PrefixCache | None,
    n: int,
) -> Iterator[tuple[list[GenerationState], Prefill]]:
    """Pairs: sequences that generate together, longest first, and their prefill."""
    ensemble = forward.ensemble
    if ensemble.cache == "none":
        prefix_cache = None
    if ensemble.own_history:
        prefix_cache = (prefix_cache or PrefixCache(Store(0))) if ensemble.prefill == "clean" else None
    longest = max((len(state.prompt) for state in states), default=0) + n * max_new_tokens
    size = budget.sequences or min(MAX_SEQUENCES, _most_sequences(forward, longest))
    size = max(1, min(size, budget.tokens // n))
    alone = not forward.shares_beginnings
    one_group = prefix_cache or alone or ensemble.own_history or ensemble.cache == "none"
    prompts = [state.prompt for state in states]
    groups = [Group(list(range(len(prompts))), 0)] if one_group else group_by_prefix(prompts)
    for group in groups:
        members = sorted((states[i] for i in group.members), key=lambda state: -len(state.prompt))
        prefix = shared_prefix(forward, members[0].prompt[: group.shared])
        prefill = Prefill(forward, budget, max_new_tokens, prefix, prefix_cache)
        for start in range(0, len(members), size):
            yield members[start : start + size], prefill


def _most_sequences(forward: EnsembleForward, length: int) -> int:
    """How many sequences of this length have their keys and values in `CACHE_SHARE` of the free memory."""
    size = token_bytes(forward.model) * max(1, length)
    return int(CACHE_SHARE * free_memory(forward.device) // size)


class _Batch:
    """Sequences that generate together, right-aligned in one cache, so that all write to the same slot."""

    def __init__(
        self,
        forward: EnsembleForward,
        states: list[GenerationState],
        prefill: Prefill,
        adaptive: AdaptiveStep | None,
    ):
        self.forward = forward
        self.states = states
        self.prefill = prefill
        self.adaptive = adaptive
        self.active = list(range(len(states)))
        self.cache, self.real_BT, scores_AV = prefill(states)
        self._padded = not bool(self.real_BT.all())
        self.scores_AV = self._sampled(scores_AV)

    def run(self, decoding: Decoding, on_done: OnDone) -> None:
        while True:
            decoding.extend([self.states[b] for b in self.active], self.scores_AV)
            ended = {b for b in self.active if decoding.ends(self.states[b])}
            for b in sorted(ended):
                on_done(self.states[b])
            self.active = [b for b in self.active if b not in ended]
            if not self.active:
                return
            if self.forward.ensemble.cache == "none":
                self.scores_AV = self.prefill([self.states[b] for b in self.active]).scores_AV
                continue
            if len(self.active) <= len(self.states) // 2:
                self._drop_finished()
            self.scores_AV = self._step()

    def _drop_finished(self) -> None:
        index = torch.tensor(self.active, device=self.forward.device)
        self.cache, self.real_BT = self.cache.select(index, len(self.states)), self.real_BT[index]
        self._padded = not bool(self.real_BT.all())
        self.states = [self.states[b] for b in self.active]
        self.active = list(range(len(self.states)))

    def _step(self) -> Tensor:
        """float32 [A, V]: scores after the newest token of every unfinished sequence."""
        device = self.forward.device
        active = set(self.active)
        self.real_BT = torch.nn.functional.pad(self.real_BT, (0, 1), value=True)
        tokens = Tokens(
            ids_BS=torch.tensor([[s.generated[-1]] for s in self.states], device=device),
            position_BS=torch.tensor([[s.position] for s in self.states], device=device),
            visible_BSK=None if len(self.states) == 1 and not self._padded else self.real_BT[:, None],
            logit_positions_M=torch.tensor(self.active, device=device),
            noise_key_B=torch.tensor([s.noise_key for s in self.states], device=device),
            sample_index_B=torch.tensor([s.sample_index for s in self.states], device=device),
            most_logits=1,
            real_BS=torch.tensor([[b in active] for b in range(len(self.states))], device=device),
            names_BS=self._names,
            count=len(self.active),
        )
        return self._sampled(self.forward.ensemble.next_scores(self.forward(tokens, self.cache)))

    def _sampled(self, scores_AV: Tensor) -> Tensor:
        """The scores; unsure sequences have those of their noisy samples."""
        if self.adaptive is None:
            return scores_AV
        sequence_A = torch.tensor(self.active, device=self.forward.device)
        states = [self.states[b] for b in self.active]
        return self.adaptive(states, sequence_A, self.cache, self.real_BT, scores_AV)

    def _names(self) -> np.ndarray:
        names = np.zeros((len(self.states), 1), dtype=np.int64)
        names[self.active, 0] = [self.states[b].name for b in self.active]
        return names
