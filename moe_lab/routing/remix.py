"""A policy that routes tokens by given probabilities and is differentiable in them.

N = sequences of a pass, S = tokens of each, W = re-routed tokens of each, T = N x S, E = experts, K = experts per
token, C = given experts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moe_lab.routing.hook import Router
from moe_lab.routing.seams import Routing


class Remix:
    """Routes the first W tokens of each of the N sequences of a pass by given probabilities. Others are not changed.

    The probabilities replace the router's. Their logarithms, shifted to the log-sum-exp of the router's logits, go
    through the family's rule, so that the router's own probabilities change nothing.

    Args:
        probs: [N, W, E] of some MoE layers, which sum to 1 over E. Other layers are not changed.
        experts: int64 [N, W, C] of the same layers: experts that all contribute. None: the K experts that the router
            chooses at these probabilities.
        noise: [N, W, E] of the same layers, added to the scores by which the K experts are chosen, not to their
        weights.
    """

    def __init__(
        self,
        probs: dict[int, Tensor],
        experts: dict[int, Tensor] | None = None,
        noise: dict[int, Tensor] | None = None,
    ):
        self.probs, self.experts, self.noise = probs, experts, noise

    @property
    def needs_grad(self) -> bool:
        """Whether some probabilities require gradients."""
        return torch.is_grad_enabled() and any(probs_NWE.requires_grad for probs_NWE in self.probs.values())

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        if router.layer not in self.probs:
            return None
        probs_NWE = self.probs[router.layer].to(routing.logits_TE.device)
        N, W, _ = probs_NWE.shape
        S, K = len(routing.logits_TE) // N, routing.index_TK.shape[-1]
        own_RE = routing.logits_TE.unflatten(0, (N, S))[:, :W].flatten(0, 1)
        given_RE = logits_of(probs_NWE.flatten(0, 1), router, own_RE)
        if self.experts is None:
            scores_RE = router.scores(given_RE.detach())
            if self.noise:
                scores_RE = scores_RE + self.noise[router.layer].to(scores_RE.device).flatten(0, 1)
            index_RC = router.choose(scores_RE, K)
        else:
            index_RC = self.experts[router.layer].to(own_RE.device).flatten(0, 1)
        weights_RC = router.weights(given_RE, index_RC).to(routing.weights_TK.dtype)
        if S > W:
            usual = _with_experts(router, routing, index_RC.shape[-1])
            weights_RC = _in_front(weights_RC, usual.weights_TK, N)
            index_RC = _in_front(index_RC, usual.index_TK, N)
        return Routing(routing.logits_TE, weights_RC, index_RC)


def router_probs(router: Router, logits_TE: Tensor) -> Tensor:
    """float32 [T, E]: the softmax of a router's logits, without the bias for choosing experts."""
    return router.family.rule.scores(router.module, logits_TE).softmax(dim=-1)


def logits_of(probs_NE: Tensor, router: Router, own_NE: Tensor) -> Tensor:
    """Logits with these probabilities and the log-sum-exp of the router's own, on which some rules depend."""
    size_N1 = router.family.rule.scores(router.module, own_NE).logsumexp(-1, keepdim=True)
    scores_NE = probs_NE.clamp(min=torch.finfo(probs_NE.dtype).tiny).log() + size_N1
    return router.family.rule.logits(scores_NE)


def _with_experts(router: Router, routing: Routing, C: int) -> Routing:
    """The same decision with C distinct experts for each token; added experts have weight 0."""
    more = C - routing.index_TK.shape[-1]
    if not more:
        return routing
    others_TE = router.scores(routing.logits_TE).scatter(-1, routing.index_TK, -torch.inf)
    index_TC = torch.cat([routing.index_TK, others_TE.topk(more, dim=-1).indices], dim=-1)
    return Routing(routing.logits_TE, torch.nn.functional.pad(routing.weights_TK, (0, more)), index_TC)


def _in_front(own_RC: Tensor, all_TC: Tensor, N: int) -> Tensor:
    """`all_TC` of N sequences with the first tokens of each replaced by `own_RC`."""
    own_NWC, all_NSC = own_RC.unflatten(0, (N, -1)), all_TC.unflatten(0, (N, -1))
    return torch.cat([own_NWC, all_NSC[:, own_NWC.shape[1] :]], dim=1).flatten(0, 1)
