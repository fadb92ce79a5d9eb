"""Policies that route by given probabilities (C3PO), among partner experts (C2R) and to steered experts (SteerMoE).

T = tokens of a pass, N = sequences of a pass (or with pathways), S = tokens of each sequence, W = re-routed tokens of
each, P = re-routed tokens of a pass, L = MoE layers, E = experts (the maximum over layers), K = experts per token,
C = given experts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_lab.routing.counting import DecisionCounter
from moe_lab.routing.hook import Policy, Router, Routing
from moe_lab.routing.rules import LOGITS


class Remix(Policy):
    """Routes the first W tokens of each of the N sequences of a pass by given probabilities. Others are not changed.

    The probabilities replace the router's. Their logarithms, shifted to the log-sum-exp of the router's logits, go
    through the family's rule, so that the router's own probabilities change nothing.

    Args:
        probs: [N, W, E] of some MoE layers, which sum to 1 over E. Other layers are not changed.
        experts: int64 [N, W, C] of the same layers: experts that all contribute. None: the K experts that the router
            chooses at these probabilities.
    """

    def __init__(self, probs: dict[int, Tensor], experts: dict[int, Tensor] | None = None):
        self.probs, self.experts = probs, experts

    @property
    def needs_grad(self) -> bool:
        """Whether some probabilities require gradients."""
        return torch.is_grad_enabled() and any(
            probs_NWE.requires_grad for probs_NWE in self.probs.values()
        )

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        if router.layer not in self.probs:
            return None
        probs_NWE = self.probs[router.layer].to(routing.logits_TE.device)
        N, W, _ = probs_NWE.shape
        S, K = len(routing.logits_TE) // N, routing.index_TK.shape[-1]
        own_RE = routing.logits_TE.unflatten(0, (N, S))[:, :W].flatten(0, 1)
        given_RE = logits_of(probs_NWE.flatten(0, 1), router, own_RE)
        if self.experts is None:
            index_RC = router.choose(router.scores(given_RE.detach()), K)
        else:
            index_RC = self.experts[router.layer].to(own_RE.device).flatten(0, 1)
        weights_RC = router.weights(given_RE, index_RC).to(routing.weights_TK.dtype)
        if S > W:
            usual = router.widened(routing, index_RC.shape[-1])
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


def _in_front(own_RC: Tensor, all_TC: Tensor, N: int) -> Tensor:
    """`all_TC` of N sequences with the first tokens of each replaced by `own_RC`."""
    own_NWC, all_NSC = own_RC.unflatten(0, (N, -1)), all_TC.unflatten(0, (N, -1))
    return torch.cat([own_NWC, all_NSC[:, own_NWC.shape[1] :]], dim=1).flatten(0, 1)


@dataclass(frozen=True)
class Places:
    """The re-routed tokens of the next pass and their pathways. All [P]."""

    index: Tensor
    """int64: indices among the T tokens."""
    pathway: Tensor
    """int64: index of each token's pathway among N x W."""
    share: Tensor
    """float32: share of that pathway. The rest are the token's own probabilities."""


class Override(Policy):
    """Routes the tokens given to `expect` by a mixture of given probabilities and their own. Others are not changed.

    The mixture replaces the router's probabilities: top-k and weights are computed from it by the family's rule.

    Args:
        probs: [N, W, E] of some MoE layers, which sum to 1 over E. Other layers are not changed.
    """

    def __init__(self, probs: dict[int, Tensor]):
        self.probs = {layer: probs_NWE.detach().flatten(0, 1) for layer, probs_NWE in probs.items()}
        self._places: Places | None = None

    def expect(self, places: Places | None) -> None:
        """Set the re-routed tokens of the next forward pass; None: no token."""
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
        return routing.changed(chosen, weights_PK, index_PK)


def partners_of(pairs_LEE: Tensor, count: int) -> Tensor:
    """bool [L, E, E]: each expert's `count` most co-activated experts, and itself.

    Args:
        pairs_LEE: number of tokens with both experts. In a tie the lower expert number comes first, so that an expert
            without tokens has the first `count` other experts as partners.
    """
    E = pairs_LEE.shape[-1]
    itself_EE = torch.eye(E, dtype=torch.bool)
    order_LEE = pairs_LEE.masked_fill(itself_EE, -1).argsort(dim=-1, descending=True, stable=True)
    allowed_LEE = torch.zeros(pairs_LEE.shape, dtype=torch.bool)
    allowed_LEE.scatter_(-1, order_LEE[..., :count], True)
    return allowed_LEE | itself_EE


class PartnersOnly(Policy):
    """Collaboration-constrained routing (C2R, Zhang et al. 2025): a policy that takes experts among partners.

    Each token keeps its expert with the largest score, and takes the others of its top-k from that expert's partners.

    Weights follow the family's rule. A token whose experts are all partners of the first one is not changed.

    Args:
        allowed_LEE: bool, `partners_of`.
    """

    def __init__(self, allowed_LEE: Tensor):
        self.allowed_LEE = allowed_LEE
        self._counter = DecisionCounter()

    def counts(self) -> dict[str, int]:
        """Changed decisions (`constrained_decisions`) and all of them. A decision is one token in one layer."""
        changed, decisions = self._counter.totals
        return {"constrained_decisions": changed, "routing_decisions": decisions}

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        logits_TE, weights_TK, index_TK = routing
        device, E = logits_TE.device, logits_TE.shape[-1]
        scores_TE = router.scores(logits_TE)
        best_T1 = scores_TE.gather(-1, index_TK).argmax(dim=-1, keepdim=True)
        first_T = index_TK.gather(-1, best_T1)[:, 0]
        self.allowed_LEE = self.allowed_LEE.to(device)  # once: its place stays there
        allowed_TE = self.allowed_LEE[router.layer, :E, :E][first_T]
        kept_T = allowed_TE.gather(-1, index_TK).all(dim=-1)
        self._counter.count(kept_T, self.real_T)
        partners_TK = router.choose(
            scores_TE.masked_fill(~allowed_TE, -torch.inf), index_TK.shape[-1]
        )
        partner_weights_TK = router.weights(logits_TE, partners_TK).to(weights_TK.dtype)
        kept_T1 = kept_T[:, None]  # such a token keeps its bits
        return Routing(
            logits_TE,
            torch.where(kept_T1, weights_TK, partner_weights_TK),
            torch.where(kept_T1, index_TK, partners_TK),
        )


MARGIN = 0.01
"""How far a steered expert's score is above the largest, or below the smallest: that of SteerMoE's code."""


class Steered(Policy):
    """Steered routing (SteerMoE, Fayyaz et al. 2025): a policy that forces experts in or out for every token.

    The score of an expert that is forced in becomes MARGIN above the largest score of the token, that of an expert
    that is forced out MARGIN below the smallest. The router chooses by these scores. The logits change in the same way,
    and weights follow the family's rule for them.

    Args:
        sign_LE: 1 for experts that are forced in, -1 for those that are forced out, 0 for the others. A layer without
            such experts is not changed.
    """

    def __init__(self, sign_LE: Tensor):
        self.sign_LE = sign_LE
        self.layers = frozenset(sign_LE.any(dim=-1).nonzero()[:, 0].tolist())
        self._counter = DecisionCounter()

    def counts(self) -> dict[str, int]:
        """`constrained_decisions`, with another set of experts than the router's, and all decisions."""
        changed, decisions = self._counter.totals
        return {"constrained_decisions": changed, "routing_decisions": decisions}

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        logits_TE, weights_TK, index_TK = routing
        if router.layer not in self.layers:
            kept_T = torch.ones(len(logits_TE), dtype=torch.bool, device=logits_TE.device)
            self._counter.count(kept_T, self.real_T)
            return None
        self.sign_LE = self.sign_LE.to(logits_TE.device)  # once: its place stays there
        sign_E = self.sign_LE[router.layer, : logits_TE.shape[-1]]
        chosen_TK = router.choose(_forced(router.scores(logits_TE), sign_E), index_TK.shape[-1])
        self._counter.decided(chosen_TK, index_TK)
        self._counter.compare(counted_N=self.real_T)
        rule = router.family.rule
        if (
            rule.noise == LOGITS
        ):  # Gemma-4's router returns probabilities, whose logarithms are its scores
            moved_TE = rule.logits(_forced(rule.scores(router.module, logits_TE), sign_E))
        else:
            moved_TE = _forced(logits_TE, sign_E)
        # others keep their bits
        steered_TE = torch.where(sign_E == 0, logits_TE, moved_TE.to(logits_TE.dtype))
        return Routing(
            steered_TE, router.weights(steered_TE, chosen_TK).to(weights_TK.dtype), chosen_TK
        )


def _forced(scores_TE: Tensor, sign_E: Tensor) -> Tensor:
    highest_T1 = scores_TE.amax(dim=-1, keepdim=True) + MARGIN
    lowest_T1 = scores_TE.amin(dim=-1, keepdim=True) - MARGIN
    return torch.where(sign_E > 0, highest_T1, torch.where(sign_E < 0, lowest_T1, scores_TE))
