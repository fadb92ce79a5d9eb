"""A policy that routes single tokens at any place of a pass by given probabilities.

T = tokens of a pass, P = re-routed tokens, N = sequences with pathways, W = tokens of each pathway, E = experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_lab.errors import RoutingError
from moe_lab.routing.hook import Router
from moe_lab.routing.remix import logits_of, router_probs
from moe_lab.routing.seams import Routing


@dataclass(frozen=True)
class Places:
    """The re-routed tokens of the next pass and their pathways. All [P]."""

    index: Tensor
    """int64: indices among the T tokens."""
    pathway: Tensor
    """int64: index of each token's pathway among N x W."""
    share: Tensor
    """float32: share of that pathway. The rest are the token's own probabilities."""


class Override:
    """Routes the tokens given to `expect` by a mixture of given probabilities and their own. Others are not changed.

    The mixture replaces the router's probabilities: top-k and weights are computed from it by the family's rule.

    Args:
        probs: [N, W, E] of some MoE layers, which sum to 1 over E. Other layers are not changed.

    Raises RoutingError in a pass before the first `expect`.
    """

    def __init__(self, probs: dict[int, Tensor]):
        self.probs = {layer: probs_NWE.detach().flatten(0, 1) for layer, probs_NWE in probs.items()}
        self._told = False
        self._places: Places | None = None

    def expect(self, places: Places | None) -> None:
        """Set the re-routed tokens of the next forward pass; None: no token."""
        self._told, self._places = True, places

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        if not self._told:
            raise RoutingError("Override was told of no token. Call its `expect` before each pass.")
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
