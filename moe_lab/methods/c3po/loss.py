"""The loss of a question's pathway on its neighbours (equation 3), all questions of a batch in one pass, or in a few
where an ε-ball holds many neighbours.

N = questions, k = neighbours of each, P = pairs of a question and a neighbour, M = MoE layers, L = optimized ones,
E = experts, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from moe_lab.engine.prompt_tails import PromptTail, PromptTails
from moe_lab.methods.c3po.pathway import Pathways

ROWS = 64
"""Pairs that go through one pass: its memory is some megabytes for each."""


def _cross_entropy(logits_PV: Tensor, gold_P: Tensor) -> Tensor:
    return F.cross_entropy(logits_PV, gold_P, reduction="none")


def _l2(logits_PV: Tensor, gold_P: Tensor) -> Tensor:
    """Squared distance between the answer's distribution and the gold token."""
    return (logits_PV.softmax(dim=-1) - F.one_hot(gold_P, logits_PV.shape[-1])).square().sum(dim=-1)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cross_entropy": _cross_entropy, "l2": _l2}


class NeighbourLoss:
    """L(ω) of N questions: what their pathways cost their neighbours, in the mean weighed by a kernel.

    The neighbours' last tokens are routed by the question's pathway, all else of them is as they were read. The oracle
    (equation 2) is this loss with each question as its only neighbour.

    Args:
        tokens: k of each question; None where there is none, and the weight is 0.
        gold: first token id of each neighbour's right answer; anything where there is no neighbour.
        weight_Nk: the kernel's, of any scale.
        kind: one of `LOSSES`.
    """

    def __init__(
        self,
        tails: PromptTails,
        tokens: Sequence[Sequence[PromptTail | None]],
        gold: Sequence[Sequence[int]],
        weight_Nk: Tensor,
        kind: str = "cross_entropy",
    ):
        self.tails, self.of = tails, LOSSES[kind]
        self.found_N = weight_Nk.sum(dim=-1) > 0
        """bool: which questions have neighbours."""
        pairs = weight_Nk.nonzero().tolist()
        found = [token for n, j in pairs if (token := tokens[n][j]) is not None]
        if len(found) < len(pairs):
            raise ValueError("A neighbour with a weight has no last token.")
        self.question_P = torch.tensor([n for n, _ in pairs], dtype=torch.long)
        self.gold_P = torch.tensor([gold[n][j] for n, j in pairs], dtype=torch.long, device=tails.device)
        share_Nk = weight_Nk / weight_Nk.sum(dim=-1, keepdim=True)
        self.share_P = share_Nk[weight_Nk != 0].float()
        self._tokens = found
        self._parts = [slice(start, start + ROWS) for start in range(0, len(found), ROWS)]
        self._only = tails.batch(found) if len(self._parts) == 1 else None

    def __call__(self, pathways: Pathways, relax: str) -> Tensor:
        """float32 [N] on the CPU, differentiable in `pathways.theta`; 0 where there are no neighbours."""
        return sum(self._losses(pathways, relax), start=torch.zeros(len(pathways)))

    def gradient(self, pathways: Pathways, relax: str) -> tuple[Tensor, Tensor]:
        """(float32 [N], its gradient [N, L, C] by each question's own parameters), pass by pass."""
        total_N, gradient_NLC = torch.zeros(len(pathways)), torch.zeros_like(pathways.theta)
        for loss_N in self._losses(pathways, relax):
            gradient_NLC += torch.autograd.grad(loss_N.sum(), [pathways.theta])[0]
            total_N += loss_N.detach()
        return total_N, gradient_NLC

    def _losses(self, pathways: Pathways, relax: str) -> Iterator[Tensor]:
        """[N] of each pass: its share of the mean."""
        for part in self._parts:
            batch = self._only or self.tails.batch(self._tokens[part])
            logits_PV = self.tails.logits(batch, pathways.remix(relax, self.question_P[part]))
            loss_P = self.of(logits_PV, self.gold_P[part]).cpu()
            yield self._mean(loss_P, part, len(pathways))

    @torch.no_grad()
    def value(self, pathways: Pathways, relax: str) -> Tensor:
        """float32 [N]: without gradients, NaN where there are no neighbours."""
        return self.seen(self(pathways, relax))

    def seen(self, loss_N: Tensor) -> Tensor:
        """Losses as they are reported: NaN where there are no neighbours."""
        return loss_N.detach().where(self.found_N, torch.nan)

    def mean_pathway(self, pathways: Pathways) -> Tensor:
        """[N, L, E]: the mean of the neighbours' pathways, weighed by the kernel (equation 4); a question without
        neighbours has its own."""
        if not self._tokens:
            return pathways.clean_NLE
        pathway_PLE = torch.stack([token.pathway_ME for token in self._tokens])[:, pathways.layers]
        mean_NLE = self._mean(pathway_PLE, slice(None), len(pathways))
        return mean_NLE.where(self.found_N[:, None, None], pathways.clean_NLE)

    def _mean(self, of_P: Tensor, part: slice, count: int) -> Tensor:
        """[N, ...]: the kernel-weighted mean of something of each pair, as far as this part of the pairs goes."""
        share_P = self.share_P[part].to(of_P.dtype).reshape(-1, *[1] * (of_P.dim() - 1))
        return of_P.new_zeros(count, *of_P.shape[1:]).index_add(0, self.question_P[part], of_P * share_P)
