"""A policy by which single tokens of a pass are weighed by given probabilities, wherever they stand.

T = tokens of a pass, P = those that are re-routed, N = sequences with pathways, W = tokens of each, E = experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_lab.routing.hook import Router
from moe_lab.routing.remix import logits_of, router_probs
from moe_lab.routing.seams import Routing


@dataclass(frozen=True)
class Places:
    """Which tokens of the next pass are re-routed, and by what. All [P]."""

    index: Tensor
    """int64: places among the T tokens."""
    pathway: Tensor
    """int64: whose pathway each takes, among N x W."""
    share: Tensor
    """float32: of that pathway; the rest is the token's own."""


class Override:
    """Routes the tokens named by `expect` by a mixture of given probabilities and their own, all others as usual.

    The mixture stands for the router's own probabilities: top-k is taken of it, and weights go by the family's rule.

    Args:
        probs: of some MoE layers (others are left alone): [N, W, E], which sum to 1 over E.
    """

    def __init__(self, probs: dict[int, Tensor]):
        self.probs = {layer: probs_NWE.detach().flatten(0, 1) for layer, probs_NWE in probs.items()}
        self._places: Places | None = None

    def expect(self, places: Places | None) -> None:
        """Say which tokens of the next forward pass are re-routed; None: none of them."""
        self._places = places

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        if self._places is None or router.layer not in self.probs:
            return None
        device = routing.logits_TE.device
        chosen = self._places.index.to(device)
        own_PE = routing.logits_TE[chosen]
        given_PE = self.probs[router.layer][self._places.pathway].to(device)
        share_P1 = self._places.share[:, None].to(device)
        mixed_PE = torch.lerp(router_probs(router, own_PE), given_PE.float(), share_P1)
        logits_PE = logits_of(mixed_PE, router, own_PE)
        index_PK = router.choose(router.scores(logits_PE), routing.index_TK.shape[-1])
        weights_PK = router.weights(logits_PE, index_PK)
        return Routing(
            routing.logits_TE,
            routing.weights_TK.index_copy(0, chosen, weights_PK.to(routing.weights_TK.dtype)),
            routing.index_TK.index_copy(0, chosen, index_PK),
        )
