"""The gradient-free optimizers: kernel regression (equations 4 to 6) and mode finding (7 and 8),
with their kernels.

In kernel regression a pathway moves towards the mean of its neighbours' pathways. In mode finding
(mean shift) it moves to where the references' pathways are dense.

Distances of unit vectors are sqrt(2 - 2 cos), from 0 to 2. N = questions, R = references,
k = neighbours of each question, W = re-routed tokens, M = MoE layers, L = optimized ones,
E = experts, C = core experts, A = values of alpha.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from moe_lab.methods.c3po.config import ALPHAS, KEPT, C3POConfig
from moe_lab.methods.c3po.descent import NeighbourLoss, check_losses
from moe_lab.methods.c3po.pathway import ChangedPathways, Pathways, Watch, unwatched

DEGREE = 2
"""The degree of the polynomial kernel (1 + cos)^degree."""
_TINY = 1e-12


KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda distance: (1 - distance.square() / 2).clamp(min=0).log(),
    "polynomial": lambda distance: DEGREE * (2 - distance.square() / 2).clamp(min=0).log(),
    "matern": lambda scaled: torch.log1p(math.sqrt(3) * scaled) - math.sqrt(3) * scaled,
    "gaussian": lambda scaled: -scaled.square() / 2,
}
"""Logarithms of the kernels (section 3 and Table 6). Linear: the cosine, 0 below 0;
Matérn with smoothness 3/2."""
SCALED = ("matern", "gaussian")
"""Kernels with a bandwidth."""


def kernel(name: str, distance_Nk: Tensor, bandwidth: float | None = None) -> Tensor:
    """float32 [N, k]: the kernel, divided by its largest value for each question;
    0 for a missing neighbour.

    The division does not change weighted means. Without it, a small bandwidth could make all
    weights 0.

    Args:
        name: one of `KERNELS`.
        bandwidth: of `SCALED` kernels; None: the (lower) median of each question's own distances.
    """
    if not distance_Nk.numel():
        return distance_Nk.float()
    is_neighbour_Nk = distance_Nk.isfinite()
    distance_Nk = distance_Nk.float().where(is_neighbour_Nk, 0.0)
    if name in SCALED and bandwidth is not None:
        distance_Nk = distance_Nk / bandwidth
    elif name in SCALED:
        known_Nk = distance_Nk.where(is_neighbour_Nk, torch.nan)
        median_N1 = known_Nk.nanmedian(dim=-1, keepdim=True).values
        distance_Nk = distance_Nk / median_N1.nan_to_num(1.0).clamp(min=_TINY)
    logs_Nk = KERNELS[name](distance_Nk).where(is_neighbour_Nk, -torch.inf)
    largest_N1 = logs_Nk.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(logs_Nk.dtype).min)
    return (logs_Nk - largest_N1).exp()


@torch.no_grad()
def kernel_regression(
    pathways: Pathways, loss: NeighbourLoss, alpha: float | None, watch: Watch = unwatched
) -> ChangedPathways:
    """The pathways moved towards the mean of their neighbours' pathways; S = 2.

    The mean is over the core experts, scaled to the probability of the core in the question's own
    pathway; the other experts keep their probability. With all experts in the core this is
    equation 4. Losses are computed with the model's top-k. A pathway without neighbours does not
    change, and its losses are NaN.

    Args:
        alpha: share of the question's own pathway; None: for each question, the value of `ALPHAS`
            with the smallest loss on the neighbours (equation 6).

    Raises RoutingError if the loss of a question with neighbours is NaN.
    """
    own_NWLC = pathways.core_probs()
    mean_NWLC = pathways.to_core(loss.mean_pathway(pathways))
    changed = pathways.copy()

    def loss_at(alpha_N: Tensor) -> Tensor:
        alpha_N111 = alpha_N[:, None, None, None]
        changed.set_core(alpha_N111 * own_NWLC + (1 - alpha_N111) * mean_NWLC)
        return loss.value(changed, "topk")

    if alpha is None:
        tried_A = torch.tensor(ALPHAS)
        loss_AN = torch.stack([loss_at(value.expand(len(pathways))) for value in tried_A])
        check_losses(loss_AN, loss.has_neighbours_N)
        alpha_N = tried_A[loss_AN.nan_to_num(0.0).argmin(dim=0)]
    else:
        alpha_N = torch.full((len(pathways),), alpha)
    losses = torch.stack([loss.value(pathways, "topk"), loss_at(alpha_N)])
    check_losses(losses, loss.has_neighbours_N)
    watch(pathways)
    watch(changed)
    return ChangedPathways(changed, losses)


def distances(pathway_NWLE: Tensor, reference_RWLE: Tensor) -> Tensor:
    """[N, R]: root mean square, over tokens and layers, of the distance between two distributions:
    0 to sqrt(2)."""
    W, L = pathway_NWLE.shape[1:3]
    return torch.cdist(pathway_NWLE.flatten(1), reference_RWLE.flatten(1)) / math.sqrt(W * L)


@torch.no_grad()
def mode_finding(
    pathways: Pathways,
    loss: NeighbourLoss,
    reference_RWME: Tensor,
    settings: C3POConfig,
    excluded_NR: Tensor | None = None,
    watch: Watch = unwatched,
) -> ChangedPathways:
    """The pathways shifted to where the references' pathways are dense; S = shifts + 1.

    Each shift searches neighbours again among the references' pathways. Their mean is over the core
    experts and scaled to the core's probability, as in kernel regression. The loss on the
    neighbours of the question's text, with the model's top-k, is reported, not used.

    Of the k nearest references only those within the radius `epsilon` are neighbours. It is a bound
    of half the squared distance, which for vectors of unit length is the cosine distance.

    Args:
        excluded_NR: bool: references that a question must not use (near duplicates of it).
    """
    changed = pathways.copy()
    alpha = KEPT if settings.alpha is None else settings.alpha
    reference_RWLE = reference_RWME[:, :, pathways.layers]
    losses = [loss.value(changed, "topk")]
    watch(changed)
    for _ in range(settings.shifts):
        distance_NR = distances(changed.probs_NWLE(), reference_RWLE)
        if excluded_NR is not None:
            distance_NR = distance_NR.masked_fill(excluded_NR, torch.inf)
        near_Nk, index_Nk = distance_NR.topk(min(settings.k, distance_NR.shape[1]), largest=False)
        if settings.epsilon is not None:
            near_Nk = near_Nk.masked_fill(near_Nk.square() / 2 > settings.epsilon, torch.inf)
        weight_Nk = kernel(settings.kernel, near_Nk, settings.bandwidth)
        total_N1 = weight_Nk.sum(dim=-1, keepdim=True)
        share_Nk = weight_Nk / total_N1.clamp(min=torch.finfo(weight_Nk.dtype).tiny)
        mean_NWLE = torch.einsum("nk,nkwle->nwle", share_Nk, reference_RWLE[index_Nk])  # equation 8
        own_NWLC = changed.core_probs()
        moved_NWLC = alpha * own_NWLC + (1 - alpha) * changed.to_core(mean_NWLE)
        changed.set_core(moved_NWLC.where(total_N1[..., None, None] > 0, own_NWLC))
        losses.append(loss.value(changed, "topk"))
        watch(changed)
    losses_SN = torch.stack(losses)
    check_losses(losses_SN, loss.has_neighbours_N)
    return ChangedPathways(changed, losses_SN)


def without_neighbours(
    pathways: Pathways, reference_RWME: Tensor, settings: C3POConfig, excluded_NR: Tensor
) -> Tensor:
    """bool [N]: whether a question has no neighbour at the first shift.

    It keeps its pathway in all shifts.
    """
    distance_NR = distances(pathways.probs_NWLE(), reference_RWME[:, :, pathways.layers])
    radius = torch.inf if settings.epsilon is None else settings.epsilon
    is_far_NR = distance_NR.square() / 2 > radius
    return (is_far_NR | excluded_NR).all(dim=1)
