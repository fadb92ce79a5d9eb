"""Adaptive computation in generation: noisy samples of the newest token, for sequences whose clean sample is unsure.

B = sequences of a batch, T = cached slots, A = unfinished sequences, U = unsure ones among them, R = the most noisy
samples of a sequence, M = sequences with n samples, V = vocabulary, D = hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from moe_lab.engine.forward.adaptive import unsureness
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import RecordingForward
from moe_lab.engine.forward.kv_cache import KVCache, SelectedKVLayer
from moe_lab.engine.forward.masks import LayerMasks
from moe_lab.engine.forward.suffix_forward import SuffixBatch, SuffixForward
from moe_lab.engine.generation.prefill import GenerationState
from moe_lab.routing.gumbel_top_k import NoisyTokens


class AdaptiveStep:
    """Replaces the plain model's scores of unsure sequences by those of their samples.

    Args:
        ensemble: an adaptive one.
    """

    def __init__(self, model: nn.Module, ensemble: Ensemble):
        self.ensemble = ensemble
        self.clean = RecordingForward(model, ensemble.first_noisy)
        """Reads prompts and new tokens."""
        self.noisy = SuffixForward(model, ensemble.first_noisy)

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
        """float32 [A, V]: the scores of the next tokens. Called inside `self.clean`, after its pass.

        Args:
            states: the A unfinished sequences.
            sequence_A: their numbers in the batch.
            cache: of the batch; the newest token of each sequence is in its last slot.
            real_BT: True for slots of the cache that hold a token.
            logits_AV: the plain model's, as it ran before.
        """
        fork_AD, _ = self.clean.recorded()
        assert self.ensemble.adaptive is not None
        samples_A = self.ensemble.adaptive.samples_of(unsureness(logits_AV))
        scores_AV = logits_AV.clone()
        unsure_U = (samples_A > 1).nonzero()[:, 0]
        if not len(unsure_U):
            return scores_AV
        unsure = [states[u] for u in unsure_U.tolist()]
        noisy_U = samples_A[unsure_U] - 1
        with self.clean.without_hooks(), self.noisy.routed(self.ensemble.routing):
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
        real_UR = torch.arange(R, device=device) < noisy_U[:, None]

        def spread(values: list[int]) -> Tensor:
            """int64, each value once for every noisy sample."""
            return torch.tensor(values, device=device).repeat_interleave(noisy_U)

        position = [state.position for state in states]
        index = real_UR.reshape(-1).nonzero()[:, 0]
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
