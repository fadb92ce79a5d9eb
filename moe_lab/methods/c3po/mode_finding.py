"""Mode finding (mean shift, equations 7 and 8): pathways move to where those of the references are dense.

N = questions, R = references, k = neighbours of each question, W = re-routed tokens, M = MoE layers, L = optimized
ones, E = experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from moe_lab.methods.c3po.kernels import kernel
from moe_lab.methods.c3po.loss import NeighbourLoss, check_losses
from moe_lab.methods.c3po.pathway import Pathways, Watch, unwatched


@dataclass(frozen=True)
class Shifts:
    """How pathways are shifted."""

    count: int = 10
    alpha: float = 0.5
    """Share of the pathway that a shift keeps."""
    k: int = 3
    epsilon: float | None = None
    """Of the k, only references within this radius; None: all. It is half the squared distance, which is the cosine
    distance where vectors have unit length."""
    kernel: str = "gaussian"
    bandwidth: float | None = None


def distances(pathway_NWLE: Tensor, reference_RWLE: Tensor) -> Tensor:
    """[N, R]: root mean square, over tokens and layers, of the distance between two distributions: 0 to sqrt(2), as far
    as embeddings that have nothing in common."""
    W, L = pathway_NWLE.shape[1:3]
    return torch.cdist(pathway_NWLE.flatten(1), reference_RWLE.flatten(1)) / math.sqrt(W * L)


@torch.no_grad()
def mode_finding(
    pathways: Pathways,
    loss: NeighbourLoss,
    reference_RWME: Tensor,
    shifts: Shifts,
    excluded_NR: Tensor | None = None,
    watch: Watch = unwatched,
) -> tuple[Pathways, Tensor]:
    """(changed pathways, losses float32 [shifts + 1, N] on the neighbours, with the model's top-k).

    Each shift finds its neighbours anew among the references' pathways. Their mean is over the core experts and scaled
    to the core's probability, as in kernel regression. The loss is reported, not used.

    Args:
        excluded_NR: bool: references that a question may not have (near duplicates of it).
    """
    changed = pathways.copy()
    reference_RWLE = reference_RWME[:, :, pathways.layers]
    losses = [loss.value(changed, "topk")]
    watch(changed)
    for _ in range(shifts.count):
        distance_NR = distances(changed.probs_NWLE(), reference_RWLE)
        if excluded_NR is not None:
            distance_NR = distance_NR.masked_fill(excluded_NR, torch.inf)
        mean_NWLE, found_N = _local_mean(distance_NR, reference_RWLE, shifts)
        own_NWLC = changed.core_probs()
        moved_NWLC = shifts.alpha * own_NWLC + (1 - shifts.alpha) * changed.to_core(mean_NWLE)
        changed.set_core(moved_NWLC.where(found_N[:, None, None, None], own_NWLC))
        losses.append(loss.value(changed, "topk"))
        watch(changed)
    check_losses(torch.stack(losses), loss.found_N)
    return changed, torch.stack(losses)


def without_neighbours(
    pathways: Pathways, reference_RWME: Tensor, shifts: Shifts, excluded_NR: Tensor
) -> Tensor:
    """bool [N]: which questions have no neighbour at the first shift. They keep their pathway in all shifts."""
    distance_NR = distances(pathways.probs_NWLE(), reference_RWME[:, :, pathways.layers])
    radius = torch.inf if shifts.epsilon is None else shifts.epsilon
    return ((distance_NR.square() / 2 > radius) | excluded_NR).all(dim=1)


def _local_mean(distance_NR: Tensor, reference_RWLE: Tensor, shifts: Shifts) -> tuple[Tensor, Tensor]:
    """([N, W, L, E] of equation 8, bool [N]: whether there was a neighbour)."""
    near_Nk, index_Nk = distance_NR.topk(min(shifts.k, distance_NR.shape[1]), largest=False)
    if shifts.epsilon is not None:
        near_Nk = near_Nk.masked_fill(near_Nk.square() / 2 > shifts.epsilon, torch.inf)
    weight_Nk = kernel(shifts.kernel, near_Nk, shifts.bandwidth)
    total_N1 = weight_Nk.sum(dim=-1, keepdim=True)
    share_Nk = weight_Nk / total_N1.clamp(min=torch.finfo(weight_Nk.dtype).tiny)
    return torch.einsum("nk,nkwle->nwle", share_Nk, reference_RWLE[index_Nk]), total_N1[:, 0] > 0
