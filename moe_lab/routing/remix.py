"""Routing by given probabilities (C3PO).

T = tokens of a pass, N = sequences of a pass, or prompts with pathways, W = re-routed tokens of
each, P = re-routed tokens of a pass, E = experts, K = experts per token, C = given experts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_lab.routing.policy import Policy
from moe_lab.routing.router import Router
from moe_lab.routing.rules import Routing


@dataclass(frozen=True)
class Places:
    """The re-routed tokens of a pass and their pathways. All [P]."""

    index: Tensor
    """int64: indices among the T tokens."""
    pathway: Tensor
    """int64: index of each token's pathway among N x W."""
    share: Tensor | None = None
    """float32: share of that pathway. The rest are the token's own probabilities. None: 1 for all
    tokens."""


class Remix(Policy):
    """Routes some tokens of a pass by given probabilities. Others are not changed.

    The probabilities replace the router's. Their logarithms, shifted to the log-sum-exp of the
    router's logits, go through the family's rule, so that the router's own probabilities change
    nothing.

    Args:
        probs: [N, W, E] of some MoE layers, which sum to 1 over E. Other layers are not changed.
        experts: int64 [N, W, C] of the same layers: experts that all contribute. None: the K
            experts that the router chooses at these probabilities.
    """

    places: Places | None = None
    """The re-routed tokens of the next pass. None: the first W tokens of each of its N
    sequences."""

    def __init__(self, probs: dict[int, Tensor], experts: dict[int, Tensor] | None = None):
        self.probs = probs
        self.experts = experts

    @property
    def needs_grad(self) -> bool:
        """Whether some probabilities require gradients."""
        if not torch.is_grad_enabled():
            return False
        return any(probs_NWE.requires_grad for probs_NWE in self.probs.values())

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        if router.layer not in self.probs:
            return None
        device = routing.logits_TE.device
        probs_NWE = self.probs[router.layer].to(device)
        places = self.places
        if places is None:
            N, W, _ = probs_NWE.shape
            places = first_tokens(len(routing.logits_TE), N, W, device)
        if not len(places.index):
            return None
        index_P = places.index.to(device)
        pathway_P = places.pathway.to(device)
        router_logits_PE = routing.logits_TE[index_P]
        probs_PE = probs_NWE.flatten(0, 1)[pathway_P]
        if places.share is not None:
            share_P1 = places.share[:, None].to(device)
            probs_PE = torch.lerp(
                router_probs(router, router_logits_PE), probs_PE.float(), share_P1
            )
        logits_PE = logits_of(probs_PE, router, router_logits_PE)
        if self.experts is None:
            K = routing.index_TK.shape[-1]
            index_PC = router.choose(router.scores(logits_PE.detach()), K)
        else:
            index_PC = self.experts[router.layer].to(device).flatten(0, 1)[pathway_P]
        weights_PC = router.weights(logits_PE, index_PC)
        widened = router.widened(routing, index_PC.shape[-1])
        return widened.changed(index_P, weights_PC, index_PC)


def first_tokens(T: int, N: int, W: int, device: torch.device) -> Places:
    """The first W tokens of each of N sequences, with the pathways in order."""
    index_P = torch.arange(T, device=device).view(N, -1)[:, :W].flatten()
    return Places(index_P, torch.arange(N * W, device=device))


def router_probs(router: Router, logits_TE: Tensor) -> Tensor:
    """float32 [T, E]: the softmax of a router's logits, without the bias for choosing experts."""
    return router.family.rule.scores(router.module, logits_TE).softmax(dim=-1)


def logits_of(probs_PE: Tensor, router: Router, router_logits_PE: Tensor) -> Tensor:
    """Logits with these probabilities and the log-sum-exp of the router's own, on which some rules
    depend."""
    router_scores_PE = router.family.rule.scores(router.module, router_logits_PE)
    size_P1 = router_scores_PE.logsumexp(-1, keepdim=True)
    scores_PE = probs_PE.clamp(min=torch.finfo(probs_PE.dtype).tiny).log() + size_P1
    return router.family.rule.logits(scores_PE)
