"""Another number of experts for each token: as many as reach a share of the router's probabilities
(top-p routing).

T = tokens of a pass, E = experts, K = experts per token of the model, C = the most experts of a
token of the pass.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from moe_lab.routing.counting import TokenSums
from moe_lab.routing.policy import Policy
from moe_lab.routing.router import Router
from moe_lab.routing.rules import LOGITS, Routing


class _Chosen(NamedTuple):
    """The experts of T tokens."""

    index_TC: Tensor
    """int64, in the order in which the router chooses them."""
    count_T: Tensor
    """int64: how many of these each token takes, the first ones."""


class TopP(Policy):
    """A policy: each token takes its first experts whose probabilities sum to at least p (Huang et
    al. 2024).

    Experts are taken in the order in which the router chooses them. Their weights follow the
    family's rule for the experts that are taken.

    Args:
        p: above 0; 1: every token takes `most` experts.
        most: the most experts of a token; None: all that the router may choose.
    """

    def __init__(self, p: float, most: int | None):
        self.p = p
        self.most = most
        self._experts = TokenSums()

    def counts(self) -> dict[str, int]:
        """`chosen_experts` of all tokens and layers so far, and `routing_decisions`, one per token
        and layer."""
        chosen, decisions = self._experts.totals
        return {"chosen_experts": chosen, "routing_decisions": decisions}

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        K = routing.index_TK.shape[-1]
        if self.p == 1 and self.most == K:  # the router's own decision, bit for bit
            self._experts.add(torch.full_like(routing.index_TK[:, 0], K), self.real_T)
            return None
        chosen = self._chosen(router, routing.logits_TE)
        self._experts.add(chosen.count_T, self.real_T)
        return Routing(routing.logits_TE, _weights(router, routing, chosen), chosen.index_TC)

    def _chosen(self, router: Router, logits_TE: Tensor) -> _Chosen:
        """The experts of each token."""
        most = self._most_experts(router, logits_TE.shape[-1])
        index_TC = router.choose(router.scores(logits_TE), most)
        if self.p == 1:
            return _Chosen(index_TC, torch.full_like(index_TC[:, 0], most))
        reached_TC = router_shares(router, logits_TE).gather(-1, index_TC).cumsum(dim=-1)
        count_T = 1 + (reached_TC[:, : most - 1] < self.p).sum(dim=-1)
        # columns that no token takes would be computed with weight 0: one read of the device saves
        # them
        return _Chosen(index_TC[:, : int(count_T.max())], count_T)

    def _most_experts(self, router: Router, experts: int) -> int:
        """The most experts of a token, for a router of this number of experts."""
        if self.most:
            return self.most
        groups = getattr(router.module, "num_group", None)
        if not groups:
            return experts
        # those of the groups that are chosen together
        return experts // groups * router.module.topk_group


def router_shares(router: Router, logits_TE: Tensor) -> Tensor:
    """float32 [T, E]: the probabilities of a router's experts.

    The softmax of its logits. For routers that choose by sigmoids or by probabilities: these over
    their sum, without the bias for choosing experts.
    """
    scores_TE = router.family.rule.scores(router.module, logits_TE)
    if router.family.rule.noise == LOGITS:
        return scores_TE.softmax(dim=-1)
    return scores_TE / scores_TE.sum(dim=-1, keepdim=True)


def _weights(router: Router, routing: Routing, chosen: _Chosen) -> Tensor:
    """[T, C]: the weights of each token's first experts by the family's rule for these alone, 0 for
    the others."""
    index_TC = chosen.index_TC
    weights_TC = routing.weights_TK.new_zeros(index_TC.shape)
    # a rule may depend on all experts that are taken
    for count in range(1, index_TC.shape[-1] + 1):
        first_TC = router.weights(routing.logits_TE, index_TC[:, :count]).to(weights_TC.dtype)
        takes_T1 = (chosen.count_T == count)[:, None]
        weights_TC[:, :count] = torch.where(takes_T1, first_TC, weights_TC[:, :count])
    return weights_TC
