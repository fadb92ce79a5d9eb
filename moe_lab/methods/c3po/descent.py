"""Neighbourhood gradient descent of a question's pathway on the loss of its neighbours (equations 1
and 3).

With the question itself as its only neighbour, this is the oracle (equation 2). A batch of
questions takes one pass per step, or several if neighbours are many or long.

N = questions, k = neighbours of each, P = pairs of a question and a neighbour, A = answer tokens of
all pairs, W = re-routed tokens, L = optimized MoE layers, C = core experts, E = experts,
V = vocabulary, S = states (before each step and after the last), G = 1 + W L C.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from moe_lab.engine.forward.suffix_forward import SuffixBatch
from moe_lab.engine.pass_size import bound_gradients, pass_budget
from moe_lab.engine.scoring import Budget
from moe_lab.engine.suffix import PromptSuffix, SuffixReplay
from moe_lab.errors import RoutingError
from moe_lab.methods.c3po.config import C3POConfig
from moe_lab.methods.c3po.pathway import ChangedPathways, Pathways, Watch, unwatched

ROWS = 96
"""Pairs of one pass."""
HELD_BYTES = 2**30
"""Joined prefixes up to this size stay in memory for all steps;
larger ones are joined again in every step."""
EPS = 1e-6
"""Adam's epsilon. With the usual 1e-8, rounding errors become steps where the gradient is 0 (with
relax=topk, experts outside the top-k of families that renormalize)."""


def _squared_distance(logits_AV: Tensor, target_A: Tensor) -> Tensor:
    """[A]: the squared distance between the predicted distribution and the answer's token."""
    one_hot_AV = F.one_hot(target_A, logits_AV.shape[-1])
    return (logits_AV.softmax(dim=-1) - one_hot_AV).square().sum(dim=-1)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": partial(F.cross_entropy, reduction="none"),
    "l2": _squared_distance,
}
"""Losses of single tokens, [A]. An answer's loss is their mean."""


def check_losses(losses: Tensor, has_neighbours_N: Tensor) -> None:
    """Raise RoutingError if a loss [..., N] of a question with neighbours is NaN.

    Args:
        has_neighbours_N: bool.
    """
    if losses[..., has_neighbours_N].isnan().any():
        raise RoutingError(
            "The neighbours' loss is NaN. Try dtype=bfloat16 or dtype=float32; float16 overflows "
            "in many models."
        )


class _Pair(NamedTuple):
    """A question and one of its neighbours."""

    question: int
    share: float
    """The neighbour's share of the question's kernel weights."""
    suffix: PromptSuffix


class LossAndGradient(NamedTuple):
    """L(ω) of N questions, and its gradient."""

    loss_N: Tensor
    """float32"""
    gradient_NWLC: Tensor
    """In each question's own parameters (`Pathways.theta`)."""


class NeighbourLoss:
    """L(ω) of N questions: the kernel-weighted mean of their neighbours' losses.

    The neighbours' re-routed tokens take the question's pathway, in order; all other tokens are
    routed as usual. The loss of a neighbour is the mean over the tokens of its right answer, each
    predicted from the true tokens before it.

    Args:
        neighbours: k of each question, read with their right answer as the only continuation; None
            for a missing neighbour, whose weight is 0.
        weight_Nk: kernel weights of any scale.
        kind: one of `LOSSES`.
        budget: the bounds of a pass.
    """

    def __init__(
        self,
        replay: SuffixReplay,
        neighbours: Sequence[Sequence[PromptSuffix | None]],
        weight_Nk: Tensor,
        kind: str = "cross_entropy",
        budget: Budget | None = None,
    ):
        self.replay = replay
        self._loss_of_tokens = LOSSES[kind]
        self.has_neighbours_N = weight_Nk.sum(dim=-1) > 0
        """bool: whether a question has neighbours."""
        share_Nk = weight_Nk / weight_Nk.sum(dim=-1, keepdim=True)
        pairs: list[_Pair] = []
        for question, k in weight_Nk.nonzero().tolist():
            suffix = neighbours[question][k]
            if suffix is not None:
                pairs.append(_Pair(question, float(share_Nk[question, k]), suffix))
        pairs.sort(key=lambda pair: len(pair.suffix.tree))
        self._suffixes = [pair.suffix for pair in pairs]
        self.question_P = torch.tensor([pair.question for pair in pairs], dtype=torch.long)
        self.share_P = torch.tensor([pair.share for pair in pairs])
        if budget is None:
            budget = pass_budget(replay.model)
            bound_gradients(replay.model, budget)
        self._parts = _parts(self._suffixes, budget)
        self._held: list[SuffixBatch] | None = None
        """The batches of all passes, if they are small."""
        if sum(suffix.nbytes for suffix in self._suffixes) <= HELD_BYTES:
            self._held = [replay.batch(self._suffixes[part]) for part in self._parts]

    def __call__(self, pathways: Pathways, relax: str) -> Tensor:
        """float32 [N] on the pathways' device, differentiable in `pathways.theta`;
        0 without neighbours."""
        zeros_N = torch.zeros(len(pathways), device=pathways.theta.device)
        return sum(self._losses(pathways, relax), start=zeros_N)

    def gradient(self, pathways: Pathways, relax: str) -> LossAndGradient:
        """The losses and their gradients, on the pathways' device; 0 without neighbours.

        Each pass is differentiated alone, so that only one computation graph is in memory. The
        passes of a step use a copy of the parameters on the model's device, so that the host reads
        the device once per step.
        """
        on_device = pathways.on(self.replay.forward.device)
        theta_NWLC = on_device.theta
        columns = 1 + theta_NWLC[0].numel()
        # the losses in column 0, the gradients in the others: the host reads one tensor
        result_NG = theta_NWLC.new_zeros(len(on_device), columns, requires_grad=False)
        for loss_N in self._losses(on_device, relax):
            if not loss_N.requires_grad:
                raise RoutingError(
                    "The pathways have no effect on the loss: the policy of override(model, "
                    "policy) decides without the decision that it is given. Return that with other "
                    "weights or experts."
                )
            (gradient_NWLC,) = torch.autograd.grad(loss_N.sum(), [theta_NWLC])
            result_NG += torch.cat([loss_N.detach()[:, None], gradient_NWLC.flatten(1)], dim=1)
        result_NG = result_NG.to(pathways.theta.device)
        gradient_NWLC = result_NG[:, 1:].reshape(pathways.theta.shape)
        return LossAndGradient(result_NG[:, 0], gradient_NWLC)

    def _losses(self, pathways: Pathways, relax: str) -> Iterator[Tensor]:
        """float32 [N] for each pass over some pairs of question and neighbour;
        the sum over passes is L(ω)."""
        for number, part in enumerate(self._parts):
            suffixes = self._suffixes[part]
            batch = self.replay.batch(suffixes) if self._held is None else self._held[number]
            question_P = self.question_P[part].to(pathways.theta.device)
            logits_AV = self.replay.logits(batch, pathways.remix(relax, question_P))
            loss_P = self._of_answers(logits_AV, suffixes).to(pathways.theta.device)
            yield self._mean(loss_P, part, len(pathways))

    def _of_answers(self, logits_AV: Tensor, suffixes: list[PromptSuffix]) -> Tensor:
        """[pairs of a pass]: the loss of each right answer, the mean over its tokens."""
        device = logits_AV.device
        answers = [suffix.tree.continuations[0] for suffix in suffixes]
        target_A = torch.tensor(list(chain.from_iterable(answers)), device=device)
        size_P = torch.tensor([len(answer) for answer in answers])
        pair_A = torch.arange(len(answers)).repeat_interleave(size_P).to(device)
        size_A = size_P.to(device)[pair_A]
        loss_A = self._loss_of_tokens(logits_AV, target_A)
        # each token's part of its answer's mean
        part_A = loss_A / size_A
        return part_A.new_zeros(len(answers)).index_add(0, pair_A, part_A)

    @torch.no_grad()
    def value(self, pathways: Pathways, relax: str) -> Tensor:
        """float32 [N], without gradients; NaN without neighbours."""
        return self.reported(self(pathways, relax))

    def reported(self, loss_N: Tensor) -> Tensor:
        """The losses to report: NaN without neighbours."""
        return loss_N.detach().where(self.has_neighbours_N, torch.nan)

    def mean_pathway(self, pathways: Pathways) -> Tensor:
        """[N, W, L, E]: the kernel-weighted mean of the neighbours' pathways (equation 4),
        or the question's own pathway without neighbours."""
        if not self._suffixes:
            return pathways.clean_NWLE
        pathway_PWME = torch.stack([suffix.pathway_WME for suffix in self._suffixes])
        pathway_PWLE = pathway_PWME[:, :, pathways.layers]
        mean_NWLE = self._mean(pathway_PWLE, slice(None), len(pathways))
        return mean_NWLE.where(self.has_neighbours_N[:, None, None, None], pathways.clean_NWLE)

    def _mean(self, of_P: Tensor, part: slice, count: int) -> Tensor:
        """[N, ...]: this part's contribution to the kernel-weighted mean of values [pairs, ...]."""
        share_P = self.share_P[part].to(of_P).reshape(-1, *[1] * (of_P.dim() - 1))
        question_P = self.question_P[part].to(of_P.device)
        return of_P.new_zeros(count, *of_P.shape[1:]).index_add(0, question_P, of_P * share_P)


def _parts(suffixes: Sequence[PromptSuffix], budget: Budget) -> list[slice]:
    """The pairs of each pass, within the budget; `suffixes` are sorted by length."""
    parts = []
    start = 0
    logit_rows = 0
    for number, suffix in enumerate(suffixes):
        rows = len(suffix.tree.logit_nodes)
        pairs = number - start
        # the size of the pass with this pair, which is the longest and pads the others
        tokens = (pairs + 1) * len(suffix.tree)
        size = tokens + budget.gradient_row * (logit_rows + rows)
        if pairs and (pairs == ROWS or size > budget.gradient_tokens):
            parts.append(slice(start, number))
            start = number
            logit_rows = 0
        logit_rows += rows
    if suffixes:
        parts.append(slice(start, len(suffixes)))
    return parts


def learning_rates(schedule: str, first: float, last: float, steps: int) -> list[float]:
    """The rate of each step.

    "cosine" falls like half a cosine and ends at `last`; "step" divides the steps equally among the
    powers of ten from `first` to `last`; "fixed" stays at `first`.
    """
    if schedule == "fixed" or first == last:
        return [first] * steps
    rates = []
    levels = max(2, round(abs(math.log10(first / last))) + 1)
    for step in range(steps):
        if schedule == "cosine":
            angle = math.pi * step / max(1, steps - 1)
            rate = last + (first - last) * (1 + math.cos(angle)) / 2
        else:
            level = step * levels // steps
            rate = first * (last / first) ** (level / (levels - 1))
        rates.append(rate)
    return rates


def ngd(
    pathways: Pathways, loss: NeighbourLoss, settings: C3POConfig, watch: Watch = unwatched
) -> ChangedPathways:
    """Neighbourhood gradient descent; S = steps + 1.

    All questions are optimized at once. Each has its own parameters and loss, so the result does
    not depend on the batch. Questions without neighbours keep their pathways, and their loss is
    NaN.

    Raises RoutingError if the loss of a question with neighbours is NaN.
    """
    changed = pathways.copy(settings.parameters)
    optimizer: torch.optim.Optimizer
    if settings.update == "adam":
        optimizer = torch.optim.Adam([changed.theta], lr=0.0, eps=EPS)
    else:
        optimizer = torch.optim.SGD([changed.theta], lr=0.0)
    losses = []
    first, last = settings.learning_rate
    for rate in learning_rates(settings.schedule, first, last, settings.steps):
        watch(changed)
        at_pathways = loss.gradient(changed, settings.relax)
        losses.append(loss.reported(at_pathways.loss_N))
        changed.theta.grad = at_pathways.gradient_NWLC
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        changed.project()
    changed.theta.grad = None
    watch(changed)
    losses.append(loss.value(changed, settings.relax))
    losses_SN = torch.stack(losses)
    check_losses(losses_SN, loss.has_neighbours_N)
    return ChangedPathways(changed, losses_SN)
