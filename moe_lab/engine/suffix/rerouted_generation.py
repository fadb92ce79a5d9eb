"""Forward passes in which chosen tokens of each sequence are weighed by given pathways, for generation.

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
"""Which tokens take a pathway: those of the prompt alone; all new ones, too; these, each with half the share of the one
before it (the rest is its own)."""
HALVED = 0.5


class ReroutedForward(EnsembleForward):
    """The plain model, but for the re-routed tokens of prompts, and of what is generated after them.

    Args:
        answers: N prompts.
        probs: of each re-routed MoE layer, [N, W, E]: the pathways of their tokens, in order.
        span: which tokens of a prompt these are.
        persistence: one of `PERSISTENCE`; new tokens take the pathway of the prompt's last re-routed one.
    """

    shares_beginnings = False

    def __init__(
        self,
        model: nn.Module,
        answers: Sequence[GenerationState],
        probs: dict[int, Tensor],
        span: TokenSpan,
        persistence: str,
    ):
        super().__init__(model, Ensemble())
        self.span, self.persistence = span, persistence
        self._override = Override(probs)
        self._of = {(a.noise_key, a.sample_index): (n, len(a.prompt)) for n, a in enumerate(answers)}

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
        """(which of W pathways the token at `position` takes, its share) after a prompt of `length` tokens."""
        w = position - self.span.start(length)
        if position < length:
            return (w, 1.0) if 0 <= w < self.span.size else None
        if self.persistence == "prompt_last":
            return None
        new = position - length + 1
        return self.span.size - 1, HALVED**new if self.persistence == "decay" else 1.0
