"""Adaptive computation in generation: noisy samples of the newest token, for sequences whose clean sample is unsure.

B = sequences of a batch, T = cached slots, A = unfinished sequences, U = those of them with n samples, V = vocabulary,
D = hidden size.
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
        counts = sorted(set(samples_A.tolist()) - {1})
        if not counts:
            return scores_AV
        with self.clean.without_hooks(), self.noisy.routed(self.ensemble.routing):
            for n in counts:
                unsure_U = (samples_A == n).nonzero()[:, 0]
                sequence_U = sequence_A[unsure_U]
                noisy_UmV = self._noisy_logits(
                    n, [states[u] for u in unsure_U.tolist()], sequence_U, cache, real_BT, fork_AD[unsure_U]
                )
                logits_UnV = torch.cat([logits_AV[unsure_U, None], noisy_UmV], dim=1)
                scores_AV[unsure_U] = self.ensemble.first(n).next_scores(logits_UnV)
        return scores_AV

    def _noisy_logits(
        self,
        n: int,
        states: list[GenerationState],
        sequence_U: Tensor,
        cache: KVCache,
        real_BT: Tensor,
        fork_UD: Tensor,
    ) -> Tensor:
        """Logits [U, n - 1, V] of the noisy samples."""
        U, noisy, device = len(states), n - 1, fork_UD.device
        history_UT = real_BT[sequence_U]
        history_UT[:, -1] = False  # a sample attends to itself instead of the newest token
        itself = torch.eye(noisy, dtype=torch.bool, device=device).expand(U, -1, -1)
        visible = torch.cat([history_UT[:, None].expand(-1, noisy, -1), itself], dim=-1)

        def spread(values: list[int]) -> Tensor:
            """int64 [U (n - 1)], each value once for every noisy sample."""
            return torch.tensor(values, device=device).repeat_interleave(noisy)

        index = torch.arange(U * noisy, device=device)
        position = spread([state.position for state in states])
        assert self.ensemble.routing is not None
        self.ensemble.routing.expect(
            NoisyTokens(
                index=index,
                document=spread([state.noise_key for state in states]),
                repeat=spread([state.sample_index for state in states]),
                row=torch.arange(1, n, device=device).repeat(U),
                position=position,
            )
        )
        logits = self.noisy(
            SuffixBatch(
                hidden_BSD=fork_UD[:, None].expand(-1, noisy, -1),
                position_BS=position.view(U, noisy),
                masks=LayerMasks(visible, self.noisy.model.dtype),
                layers=[SelectedKVLayer(layer, sequence_U) for layer in cache.layers],
                logits_at=index,
                count=U * noisy,
            )
        )
        return logits.view(U, noisy, -1)
