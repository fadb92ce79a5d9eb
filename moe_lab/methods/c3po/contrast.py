"""A loss on right and on wrong neighbours: wrong answers are negative evidence. Not in the paper."""

from __future__ import annotations

import torch
from torch import Tensor

from moe_lab.methods.c3po.loss import NeighbourLoss
from moe_lab.methods.c3po.pathway import Pathways


class Contrast:
    """L(ω) of right neighbours plus a weight times that of wrong ones, which is their `unlikelihood`.

    Questions without right neighbours must have no wrong ones. Descended on like a `NeighbourLoss`.
    """

    def __init__(self, right: NeighbourLoss, wrong: NeighbourLoss, weight: float):
        self.right, self.wrong, self.weight = right, wrong, weight
        self.found_N = right.found_N

    def gradient(self, pathways: Pathways, relax: str) -> tuple[Tensor, Tensor]:
        """(float32 [N], its gradient [N, W, L, C])."""
        right_N, gradient = self.right.gradient(pathways, relax)
        wrong_N, against = self.wrong.gradient(pathways, relax)
        return right_N + self.weight * wrong_N, gradient + self.weight * against

    @torch.no_grad()
    def value(self, pathways: Pathways, relax: str) -> Tensor:
        """float32 [N]: NaN where there are no right neighbours."""
        return self.seen(self.right(pathways, relax) + self.weight * self.wrong(pathways, relax))

    def seen(self, loss_N: Tensor) -> Tensor:
        """Losses as they are reported: NaN where there are no right neighbours."""
        return self.right.seen(loss_N)
