"""Forward passes for generation in which some tokens of each sequence are routed by given pathways.

B = sequences, S = new tokens, N = sequences with pathways, W = re-routed tokens of each prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from moe_lab.engine.forward.batch import Tokens
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.engine.generation.prefill import GenerationState
from moe_lab.engine.suffix.token_span import TokenSpan
from moe_lab.routing import routed
from moe_lab.routing.override import Override, Places

PERSISTENCE = ("prompt_last", "all_new", "decay")
"""Tokens that take a pathway: re-routed tokens of the prompt only; all new tokens too; all new tokens, each with half
the share of the token before it and the rest its own."""
HALVED = 0.5


class ReroutedForward(EnsembleForward):
    """The plain model with some tokens re-routed: tokens of the prompts, and new ones according to `persistence`.

    Args:
        states: N prompts.
        probs: [N, W, E] of each re-routed MoE layer: the pathways of the prompts' re-routed tokens, in order.
        span: the re-routed tokens of a prompt.
        persistence: one of `PERSISTENCE`. New tokens take the pathway of the prompt's last re-routed token.
    """

    shares_beginnings = False

    def __init__(
        self,
        model: nn.Module,
        states: Sequence[GenerationState],
        probs: dict[int, Tensor],
        span: TokenSpan,
        persistence: str,
    ):
        super().__init__(model, Ensemble())
        self.span, self.persistence = span, persistence
        self._override = Override(probs)
        self._of = {(s.noise_key, s.sample_index): (n, len(s.prompt)) for n, s in enumerate(states)}

    def __enter__(self) -> ReroutedForward:
        super().__enter__()
        self._stack.enter_context(routed(self.model, self._override))
        return self

    def __call__(self, tokens: Tokens, cache: KVCache) -> Tensor:
        self._override.expect(self._places(tokens))
        return super().__call__(tokens, cache)

    def _places(self, tokens: Tokens) -> Places | None:
        """The re-routed tokens of a pass."""
        index, pathway, share = [], [], []
        B, S = tokens.ids_BS.shape
        positions = tokens.position_BS.tolist()
        real = [[True] * S] * B if tokens.real_BS is None else tokens.real_BS.tolist()
        keys = zip(tokens.noise_key_B.tolist(), tokens.sample_index_B.tolist(), strict=True)
        for b, key in enumerate(keys):
            n, length = self._of[key]
            for s in range(S):
                found = self._pathway(positions[b][s], length) if real[b][s] else None
                if found:
                    index.append(b * S + s)
                    pathway.append(n * self.span.size + found[0])
                    share.append(found[1])
        if not index:
            return None
        return Places(torch.tensor(index), torch.tensor(pathway), torch.tensor(share))

    def _pathway(self, position: int, length: int) -> tuple[int, float] | None:
        """(index of the pathway, its share) of the token at `position`, for a prompt of `length` tokens."""
        w = position - self.span.start(length)
        if position < length:
            return (w, 1.0) if 0 <= w < self.span.size else None
        if self.persistence == "prompt_last":
            return None
        new = position - length + 1
        return self.span.size - 1, HALVED**new if self.persistence == "decay" else 1.0
