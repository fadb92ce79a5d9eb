"""Collaboration-constrained routing (C2R, Zhang et al. 2025): a token gets its first expert and partners of it.

L = MoE layers, E = experts (the maximum over layers), T = tokens, N = tokens whose experts change, K = experts per
token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moe_lab.routing.hook import Router, Routing
from moe_lab.routing.nesting import require_choice_by_logits


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


class PartnersOnly:
    """A policy: each token keeps its expert with the largest score, and takes the others of its top-k from its
    partners.

    Weights follow the family's rule. A token whose experts are all partners of the first one is not changed.

    Args:
        allowed_LEE: bool, `partners_of`.
    """

    def __init__(self, allowed_LEE: Tensor):
        self.allowed_LEE = allowed_LEE
        self._changed: dict[torch.device, Tensor | int] = {}
        self._decided = 0

    @property
    def decisions(self) -> tuple[int, int]:
        """(changed decisions, all decisions) so far. A decision is one token in one layer."""
        return sum(int(count) for count in self._changed.values()), self._decided

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        require_choice_by_logits(router, "C2R chooses partners by")
        logits_TE, weights_TK, index_TK = routing
        device, E = logits_TE.device, logits_TE.shape[-1]
        scores_TE = router.scores(logits_TE)
        best_T1 = scores_TE.gather(-1, index_TK).argmax(dim=-1, keepdim=True)
        first_T = index_TK.gather(-1, best_T1)[:, 0]
        allowed_TE = self.allowed_LEE[router.layer, :E, :E].to(device)[first_T]
        changed_T = ~allowed_TE.gather(-1, index_TK).all(dim=-1)
        self._changed[device] = self._changed.get(device, 0) + changed_T.sum()
        self._decided += len(changed_T)
        place_N = changed_T.nonzero()[:, 0]
        if not len(place_N):
            return None
        scores_NE = scores_TE[place_N].masked_fill(~allowed_TE[place_N], -torch.inf)
        index_NK = router.choose(scores_NE, index_TK.shape[-1])
        weights_NK = router.weights(logits_TE[place_N], index_NK).to(weights_TK.dtype)
        return Routing(
            logits_TE,
            weights_TK.index_copy(0, place_N, weights_NK),
            index_TK.index_copy(0, place_N, index_NK),
        )
