"""Policies that constrain a router's choice: to partner experts (C2R), and to steered experts
(SteerMoE).

T = tokens of a pass, L = MoE layers, E = experts (the maximum over layers), K = experts per token.
"""

import torch
from torch import Tensor

from moe_lab.routing.counting import DecisionCounter
from moe_lab.routing.policy import Policy
from moe_lab.routing.router import Router
from moe_lab.routing.rules import LOGITS, Routing


def partners_of(pairs_LEE: Tensor, count: int) -> Tensor:
    """bool [L, E, E]: for each expert (the second axis) its `count` most co-activated experts, and
    itself.

    Args:
        pairs_LEE: number of tokens with both experts. In a tie the lower expert number comes first,
            so that an expert without tokens has the first `count` other experts as partners.
    """
    E = pairs_LEE.shape[-1]
    itself_EE = torch.eye(E, dtype=torch.bool)
    order_LEE = pairs_LEE.masked_fill(itself_EE, -1).argsort(dim=-1, descending=True, stable=True)
    allowed_LEE = torch.zeros(pairs_LEE.shape, dtype=torch.bool)
    allowed_LEE.scatter_(-1, order_LEE[..., :count], True)
    return allowed_LEE | itself_EE


class PartnersOnly(Policy):
    """Collaboration-constrained routing (C2R, Zhang et al. 2025): a policy that takes experts among
    partners.

    Each token keeps its expert with the largest score, and takes the others of its top-k from that
    expert's partners.

    Weights follow the family's rule. A token whose experts are all partners of the first one is not
    changed.

    Args:
        allowed_LEE: bool, `partners_of`.
    """

    def __init__(self, allowed_LEE: Tensor):
        self.allowed_LEE = allowed_LEE
        self._counter = DecisionCounter()

    def counts(self) -> dict[str, int]:
        """Changed decisions (`constrained_decisions`) and all of them. A decision is one token in
        one layer."""
        changed, decisions = self._counter.totals
        return {"constrained_decisions": changed, "routing_decisions": decisions}

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        logits_TE, weights_TK, index_TK = routing
        device = logits_TE.device
        E = logits_TE.shape[-1]
        scores_TE = router.scores(logits_TE)
        best_T1 = scores_TE.gather(-1, index_TK).argmax(dim=-1, keepdim=True)
        first_T = index_TK.gather(-1, best_T1)[:, 0]
        self.allowed_LEE = self.allowed_LEE.to(device)  # once: its place stays there
        allowed_TE = self.allowed_LEE[router.layer, :E, :E][first_T]
        kept_T = allowed_TE.gather(-1, index_TK).all(dim=-1)
        self._counter.count(kept_T, self.real_T)
        allowed_scores_TE = scores_TE.masked_fill(~allowed_TE, -torch.inf)
        partners_TK = router.choose(allowed_scores_TE, index_TK.shape[-1])
        partner_weights_TK = router.weights(logits_TE, partners_TK).to(weights_TK.dtype)
        kept_T1 = kept_T[:, None]  # such a token keeps its bits
        return Routing(
            logits_TE,
            torch.where(kept_T1, weights_TK, partner_weights_TK),
            torch.where(kept_T1, index_TK, partners_TK),
        )


MARGIN = 0.01
"""How far a steered expert's score is above the largest, or below the smallest: that of SteerMoE's
code."""


class Steered(Policy):
    """Steered routing (SteerMoE, Fayyaz et al. 2025): a policy that forces experts in or out for
    every token.

    The score of an expert that is forced in becomes MARGIN above the largest score of the token,
    that of an expert that is forced out MARGIN below the smallest. The router chooses by these
    scores. The logits change in the same way, and weights follow the family's rule for them.

    Args:
        sign_LE: 1 for experts that are forced in, -1 for those that are forced out, 0 for the
            others. A layer without such experts is not changed.
    """

    def __init__(self, sign_LE: Tensor):
        self.sign_LE = sign_LE
        self.layers = frozenset(sign_LE.any(dim=-1).nonzero()[:, 0].tolist())
        self._counter = DecisionCounter()

    def counts(self) -> dict[str, int]:
        """`constrained_decisions`, with another set of experts than the router's, and all
        decisions."""
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
        forced_scores_TE = _forced(router.scores(logits_TE), sign_E)
        chosen_TK = router.choose(forced_scores_TE, index_TK.shape[-1])
        self._counter.decided(chosen_TK, index_TK)
        self._counter.compare(counted_N=self.real_T)
        rule = router.family.rule
        if rule.noise == LOGITS:
            # Gemma-4's router returns probabilities, whose logarithms are its scores
            moved_TE = rule.logits(_forced(rule.scores(router.module, logits_TE), sign_E))
        else:
            moved_TE = _forced(logits_TE, sign_E)
        # others keep their bits
        steered_TE = torch.where(sign_E == 0, logits_TE, moved_TE.to(logits_TE.dtype))
        steered_weights_TK = router.weights(steered_TE, chosen_TK).to(weights_TK.dtype)
        return Routing(steered_TE, steered_weights_TK, chosen_TK)


def _forced(scores_TE: Tensor, sign_E: Tensor) -> Tensor:
    """[T, E]: the scores, MARGIN outside the token's own range for experts that are forced in or
    out."""
    highest_T1 = scores_TE.amax(dim=-1, keepdim=True) + MARGIN
    lowest_T1 = scores_TE.amin(dim=-1, keepdim=True) - MARGIN
    forced_TE = torch.where(sign_E < 0, lowest_T1, scores_TE)
    return torch.where(sign_E > 0, highest_T1, forced_TE)
