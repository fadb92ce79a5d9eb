"""The loss of a question's pathway on its neighbours (equation 3). A batch of questions takes one pass, or a few where
neighbours are many or long.

N = questions, k = neighbours of each, P = pairs of a question and a neighbour, A = answer tokens of all pairs,
W = re-routed tokens, L = optimized MoE layers, E = experts, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from moe_lab.engine.forward.suffix_forward import SuffixBatch
from moe_lab.engine.suffix.recorder import PromptSuffix
from moe_lab.engine.suffix.replay import SuffixReplay
from moe_lab.errors import RoutingError
from moe_lab.methods.c3po.pathway import Pathways

ROWS = 96
"""Pairs that go through one pass."""
TOKENS = 512
"""Tokens of a pass, padding included, where it has several pairs: some megabytes each while gradients are computed."""
HELD_BYTES = 2**30
"""Joined pasts that are held for all steps; larger ones are joined anew in every step."""


def _cross_entropy(logits_AV: Tensor, target_A: Tensor) -> Tensor:
    return F.cross_entropy(logits_AV, target_A, reduction="none")


def _l2(logits_AV: Tensor, target_A: Tensor) -> Tensor:
    """Squared distance between the predicted distribution and the answer's token."""
    return (logits_AV.softmax(dim=-1) - F.one_hot(target_A, logits_AV.shape[-1])).square().sum(dim=-1)


def _unlikelihood(logits_AV: Tensor, target_A: Tensor) -> Tensor:
    """-log(1 - p) of a token that should not come (Welleck et al., arXiv 1908.04319, equation 2)."""
    others_AV = logits_AV.scatter(-1, target_A[:, None], -torch.inf)
    return logits_AV.logsumexp(dim=-1) - others_AV.logsumexp(dim=-1)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": _cross_entropy,
    "l2": _l2,
    "unlikelihood": _unlikelihood,
}
"""Of single tokens; an answer's is their mean."""


def check_losses(losses: Tensor, found_N: Tensor) -> None:
    """Raise RoutingError where a loss [..., N] of a question that has neighbours is NaN."""
    if losses[..., found_N].isnan().any():
        raise RoutingError(
            "The neighbours' loss is NaN. Try dtype=bfloat16 or dtype=float32; float16 overflows in many models."
        )


class NeighbourLoss:
    """L(ω) of N questions: the kernel-weighted mean of their neighbours' losses.

    The neighbours' re-routed tokens take the question's pathway, in order; all other tokens are routed as usual. The
    loss of a neighbour is the mean over the tokens of its right answer, each predicted behind those before it. The
    oracle (equation 2) is this loss with each question as its only neighbour.

    Args:
        neighbours: k of each question, read with their right answer as the only continuation; None for a missing
            neighbour, whose weight is 0.
        weight_Nk: the kernel's, of any scale.
        kind: one of `LOSSES`.
    """

    def __init__(
        self,
        tails: SuffixReplay,
        neighbours: Sequence[Sequence[PromptSuffix | None]],
        weight_Nk: Tensor,
        kind: str = "cross_entropy",
    ):
        self.tails, self.of = tails, LOSSES[kind]
        self.found_N = weight_Nk.sum(dim=-1) > 0
        """bool: which questions have neighbours."""
        share_Nk = weight_Nk / weight_Nk.sum(dim=-1, keepdim=True)
        pairs = [(n, j, neighbours[n][j]) for n, j in weight_Nk.nonzero().tolist()]
        found = [(n, j, tail) for n, j, tail in pairs if tail is not None]
        if len(found) < len(pairs):
            raise ValueError("A neighbour with a weight was not read.")
        found.sort(key=lambda pair: len(pair[2].tree))
        self._tails = [tail for _, _, tail in found]
        self.question_P = torch.tensor([n for n, _, _ in found], dtype=torch.long)
        self.share_P = torch.tensor([float(share_Nk[n, j]) for n, j, _ in found])
        self._parts = _parts(self._tails)
        small = sum(tail.nbytes for tail in self._tails) <= HELD_BYTES
        self._held = [tails.batch(self._tails[part]) for part in self._parts] if small else None

    def __call__(self, pathways: Pathways, relax: str) -> Tensor:
        """float32 [N] on the CPU, differentiable in `pathways.theta`; 0 where there are no neighbours."""
        return sum(self._losses(pathways, relax), start=torch.zeros(len(pathways)))

    def gradient(self, pathways: Pathways, relax: str) -> tuple[Tensor, Tensor]:
        """(float32 [N], its gradient [N, W, L, C] by each question's own parameters), pass by pass."""
        total_N, gradient_NWLC = torch.zeros(len(pathways)), torch.zeros_like(pathways.theta)
        for loss_N in self._losses(pathways, relax):
            gradient_NWLC += torch.autograd.grad(loss_N.sum(), [pathways.theta])[0]
            total_N += loss_N.detach()
        return total_N, gradient_NWLC

    def _losses(self, pathways: Pathways, relax: str) -> Iterator[Tensor]:
        """[N] of each pass: its share of the mean."""
        for i, part in enumerate(self._parts):
            tails = self._tails[part]
            batch: SuffixBatch = self._held[i] if self._held else self.tails.batch(tails)
            logits_AV = self.tails.logits(batch, pathways.remix(relax, self.question_P[part]))
            yield self._mean(self._of_answers(logits_AV, tails), part, len(pathways))

    def _of_answers(self, logits_AV: Tensor, tails: list[PromptSuffix]) -> Tensor:
        """[pairs of a pass]: the mean over each one's answer."""
        answers = [tail.tree.continuations[0] for tail in tails]
        target_A = torch.tensor([token for answer in answers for token in answer], device=logits_AV.device)
        sizes = torch.tensor([len(answer) for answer in answers])
        loss_A = self.of(logits_AV, target_A).cpu() / sizes.repeat_interleave(sizes)
        pair_A = torch.arange(len(answers)).repeat_interleave(sizes)
        return loss_A.new_zeros(len(answers)).index_add(0, pair_A, loss_A)

    @torch.no_grad()
    def value(self, pathways: Pathways, relax: str) -> Tensor:
        """float32 [N]: without gradients, NaN where there are no neighbours."""
        return self.seen(self(pathways, relax))

    def seen(self, loss_N: Tensor) -> Tensor:
        """Losses as they are reported: NaN where there are no neighbours."""
        return loss_N.detach().where(self.found_N, torch.nan)

    def mean_pathway(self, pathways: Pathways) -> Tensor:
        """[N, W, L, E]: the kernel-weighted mean of the neighbours' pathways (equation 4); a question without
        neighbours keeps its own."""
        if not self._tails:
            return pathways.clean_NWLE
        pathway_PWLE = torch.stack([tail.pathway_WME for tail in self._tails])[:, :, pathways.layers]
        mean_NWLE = self._mean(pathway_PWLE, slice(None), len(pathways))
        return mean_NWLE.where(self.found_N[:, None, None, None], pathways.clean_NWLE)

    def _mean(self, of_P: Tensor, part: slice, count: int) -> Tensor:
        """[N, ...]: the kernel-weighted mean of something of each pair, as far as this part of the pairs goes."""
        share_P = self.share_P[part].to(of_P.dtype).reshape(-1, *[1] * (of_P.dim() - 1))
        return of_P.new_zeros(count, *of_P.shape[1:]).index_add(0, self.question_P[part], of_P * share_P)


def _parts(tails: Sequence[PromptSuffix]) -> list[slice]:
    """Which pairs go through each pass; `tails` by ascending length."""
    parts, start = [], 0
    for stop in range(1, len(tails) + 1):
        longest = len(tails[min(stop, len(tails) - 1)].tree)
        if stop == len(tails) or stop - start == ROWS or (stop + 1 - start) * longest > TOKENS:
            parts.append(slice(start, stop))
            start = stop
    return parts
