"""Kernel regression (equations 4 to 6): a question's pathway moves towards the mean of its neighbours'.

N = questions, W = re-routed tokens of each, L = optimized layers, C = core experts, A = values of alpha.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moe_lab.methods.c3po.loss import NeighbourLoss, check_losses
from moe_lab.methods.c3po.pathway import Pathways, Watch, unwatched

ALPHAS = tuple(step / 10 for step in range(11))
"""Tried where alpha is not given."""


@torch.no_grad()
def kernel_regression(
    pathways: Pathways, loss: NeighbourLoss, alpha: float | None, watch: Watch = unwatched
) -> tuple[Pathways, Tensor]:
    """(changed pathways, losses float32 [2, N] of the untouched and the changed).

    The mean is over the core experts, scaled to the probability of the core in the question's own pathway; the other
    experts keep their probability. With all experts in the core this is equation 4. Losses are computed with the
    model's top-k. A pathway without neighbours does not change, and its losses are NaN.

    Args:
        alpha: share of the question's own pathway; None: the one of `ALPHAS` with the least loss on the neighbours,
            question by question (equation 6).

    Raises RoutingError where the loss of a question with neighbours is NaN.
    """
    own_NWLC, mean_NWLC = pathways.core_probs(), pathways.to_core(loss.mean_pathway(pathways))
    changed = pathways.copy()

    def loss_at(alpha_N: Tensor) -> Tensor:
        alpha_N111 = alpha_N[:, None, None, None]
        changed.set_core(alpha_N111 * own_NWLC + (1 - alpha_N111) * mean_NWLC)
        return loss.value(changed, "topk")

    if alpha is None:
        tried_A = torch.tensor(ALPHAS)
        loss_AN = torch.stack([loss_at(value.expand(len(pathways))) for value in tried_A])
        check_losses(loss_AN, loss.found_N)
        alpha_N = tried_A[loss_AN.nan_to_num(0.0).argmin(dim=0)]
    else:
        alpha_N = torch.full((len(pathways),), alpha)
    losses = torch.stack([loss.value(pathways, "topk"), loss_at(alpha_N)])
    check_losses(losses, loss.found_N)
    watch(pathways)
    watch(changed)
    return changed, losses
