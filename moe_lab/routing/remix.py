"""A policy by which a token's experts are weighed by given probabilities, through which gradients flow.

N = sequences of a pass, S = tokens of each, E = experts, K = experts per token, C = given experts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moe_lab.routing.hook import Router
from moe_lab.routing.seams import Routing


class Remix:
    """Routes the first token of each of the N sequences of a pass by given probabilities, other tokens as usual.

    The probabilities stand for those that the router itself has: their logarithms, raised to the sum that the router's
    logits have, go through the rule of its family. So with the router's own probabilities nothing changes.

    Args:
        probs: of some MoE layers (others are left alone): [N, E], rows that sum to 1.
        experts: of the same layers: int64 [N, C], which all contribute; sequences of one token only. None: those K that
            the router takes at these probabilities.
    """

    def __init__(self, probs: dict[int, Tensor], experts: dict[int, Tensor] | None = None):
        self.probs, self.experts = probs, experts

    @property
    def needs_grad(self) -> bool:
        """Whether gradients are asked for."""
        return torch.is_grad_enabled() and any(probs_NE.requires_grad for probs_NE in self.probs.values())

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        probs_NE = self.probs.get(router.layer)
        if probs_NE is None:
            return None
        N, K = len(probs_NE), routing.index_TK.shape[-1]
        logits_NE = routing.logits_TE.unflatten(0, (N, -1))[:, 0]
        given_NE = _logits_of(probs_NE.to(logits_NE.device), router, logits_NE)
        if self.experts is None:
            index_NC = router.choose(router.scores(given_NE.detach()), K)
        else:
            index_NC = self.experts[router.layer].to(logits_NE.device)
        weights_NC = router.weights(given_NE, index_NC).to(routing.weights_TK.dtype)
        if len(routing.index_TK) == N:
            return Routing(routing.logits_TE, weights_NC, index_NC)
        return Routing(
            routing.logits_TE, _first(weights_NC, routing.weights_TK), _first(index_NC, routing.index_TK)
        )


def router_probs(router: Router, logits_TE: Tensor) -> Tensor:
    """float32 [T, E]: the softmax of a router's logits, biases that it chooses by left out."""
    return router.family.rule.scores(router.module, logits_TE).softmax(dim=-1)


def _logits_of(probs_NE: Tensor, router: Router, own_NE: Tensor) -> Tensor:
    """Logits with these probabilities, as large as the router's own: in some rules more than differences matters."""
    size_N1 = router.family.rule.scores(router.module, own_NE).logsumexp(-1, keepdim=True)
    scores_NE = probs_NE.clamp(min=torch.finfo(probs_NE.dtype).tiny).log() + size_N1
    return router.family.rule.logits(scores_NE)


def _first(own_NK: Tensor, all_TK: Tensor) -> Tensor:
    """`all_TK` of N sequences with the first token of each replaced."""
    rest_NSK = all_TK.unflatten(0, (len(own_NK), -1))[:, 1:]
    return torch.cat([own_NK[:, None], rest_NSK], dim=1).flatten(0, 1)
