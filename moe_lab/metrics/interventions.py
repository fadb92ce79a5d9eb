"""Routing policies that change a model: an expert of each layer masked, or experts drawn at random.

T = tokens of a pass, L = MoE layers, E = experts, K = experts per token.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from moe_lab.engine.forward.batch import Tokens
from moe_lab.engine.forward.forward import Observer
from moe_lab.routing import Router, Routing
from moe_lab.routing.noise import gumbel_for_tokens
from moe_lab.routing.rules import LOGITS


class Masked(Observer):
    """Masks one expert of every layer: its logit is -inf before top-k. K is unchanged.

    Args:
        experts: the masked expert of each MoE layer.
    """

    observes = False

    def __init__(self, experts: Sequence[int]):
        self.experts = list(experts)

    @property
    def identity(self) -> dict[str, Any]:
        """All that determines the policy, as JSON."""
        return {"masked": self.experts}

    def __call__(self, router: Router, routing: Routing) -> Routing:
        masked = self.experts[router.layer]
        at_1 = torch.tensor([masked], device=routing.logits_TE.device)
        lowest = -torch.inf
        if router.family.rule.noise == LOGITS:  # Gemma-4's logits are probabilities
            lowest = float(router.family.rule.logits(torch.tensor(-torch.inf)))
        # the softmax gives the expert weight 0
        logits_TE = routing.logits_TE.index_fill(-1, at_1, lowest)
        scores_TE = router.scores(logits_TE).index_fill(-1, at_1, -torch.inf)
        index_TK = router.choose(scores_TE, routing.index_TK.shape[-1])
        weights_TK = router.weights(logits_TE, index_TK)
        return Routing(routing.logits_TE, weights_TK.to(routing.weights_TK.dtype), index_TK)


class RandomRouting(Observer):
    """Draws K distinct experts for every token and layer, and keeps the token's own weights,
    largest first.

    The experts depend only on the seed, the layer and the text up to the token (keyed noise,
    `routing/noise.py`), so batches, order and shared prefixes do not change them.
    """

    observes = False

    def __init__(self, seed: int):
        self.seed = seed
        self._names_T = torch.zeros(0, dtype=torch.long)
        self._position_T = self._names_T

    @property
    def identity(self) -> dict[str, Any]:
        """All that determines the policy, as JSON."""
        return {"random": self.seed}

    def expect(self, tokens: Tokens) -> None:
        self._names_T = torch.from_numpy(tokens.names_BS().reshape(-1))
        self._position_T = tokens.position_BS.reshape(-1)

    def __call__(self, router: Router, routing: Routing) -> Routing:
        device = routing.logits_TE.device
        index_TK = random_experts(
            self.seed,
            self._names_T.to(device),
            self._position_T.to(device),
            router.layer,
            E=routing.logits_TE.shape[-1],
            K=routing.index_TK.shape[-1],
        )
        weights_TK = routing.weights_TK.sort(dim=-1, descending=True).values
        return Routing(routing.logits_TE, weights_TK, index_TK)


def random_experts(
    seed: int, names_T: Tensor, position_T: Tensor, layer: int, E: int, K: int
) -> Tensor:
    """int64 [T, K]: for each token the K experts with the largest keyed noise.

    The key has row 0, which RoE's noise does not use.

    Args:
        names_T, position_T: int64, `prefix_names` and position of each token.
    """
    zero_T = torch.zeros_like(names_T)
    layer_L = torch.tensor([layer], device=names_T.device)
    noise_TE = gumbel_for_tokens(seed, names_T, zero_T, zero_T, position_T, layer_L, E)[0]
    return noise_TE.topk(K, dim=-1).indices
