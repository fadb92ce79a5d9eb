"""Mode finding (mean shift, equations 7 and 8): pathways move to where those of the references are dense.

N = questions, R = references, k = neighbours of each question, M = MoE layers, L = optimized ones, E = experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from moe_lab.methods.c3po.kernels import kernel
from moe_lab.methods.c3po.loss import NeighbourLoss
from moe_lab.methods.c3po.pathway import Pathways, Watch, unwatched


@dataclass(frozen=True)
class Shifts:
    """How pathways are shifted."""

    count: int = 10
    alpha: float = 0.5
    """Share of the pathway that a shift keeps."""
    k: int = 3
    epsilon: float | None = None
    """Only references nearer than this; None: all k."""
    kernel: str = "gaussian"
    bandwidth: float | None = None


def distances(pathway_NLE: Tensor, reference_RLE: Tensor) -> Tensor:
    """[N, R]: root mean square, over layers, of the distance between two distributions: 0 to sqrt(2), as far as
    embeddings that have nothing in common."""
    L = pathway_NLE.shape[1]
    return torch.cdist(pathway_NLE.flatten(1), reference_RLE.flatten(1)) / math.sqrt(L)


@torch.no_grad()
def mode_finding(
    pathways: Pathways,
    loss: NeighbourLoss,
    reference_RME: Tensor,
    shifts: Shifts,
    excluded_NR: Tensor | None = None,
    watch: Watch = unwatched,
) -> tuple[Pathways, Tensor]:
    """(changed pathways, losses float32 [shifts + 1, N] on the neighbours, with the model's top-k).

    Neighbours are sought anew for each shift, among the references' pathways. Their mean is taken at the core experts
    and scaled to the core's mass, as in kernel regression. The loss is told, not used.

    Args:
        excluded_NR: bool: references that a question may not have (near duplicates of it).
    """
    changed = pathways.copy()
    reference_RLE = reference_RME[:, pathways.layers]
    losses = [loss.value(changed, "topk")]
    watch(changed)
    for _ in range(shifts.count):
        distance_NR = distances(changed.probs_NLE(), reference_RLE)
        if excluded_NR is not None:
            distance_NR = distance_NR.masked_fill(excluded_NR, torch.inf)
        mean_NLE, found_N = _local_mean(distance_NR, reference_RLE, shifts)
        own_NLC = changed.core_probs()
        moved_NLC = shifts.alpha * own_NLC + (1 - shifts.alpha) * changed.to_core(mean_NLE)
        changed.set_core(moved_NLC.where(found_N[:, None, None], own_NLC))
        losses.append(loss.value(changed, "topk"))
        watch(changed)
    return changed, torch.stack(losses)


def _local_mean(distance_NR: Tensor, reference_RLE: Tensor, shifts: Shifts) -> tuple[Tensor, Tensor]:
    """([N, L, E] of equation 8, bool [N]: whether there was a neighbour)."""
    near_Nk, index_Nk = distance_NR.topk(min(shifts.k, distance_NR.shape[1]), largest=False)
    if shifts.epsilon is not None:
        near_Nk = near_Nk.masked_fill(near_Nk > shifts.epsilon, torch.inf)
    weight_Nk = kernel(shifts.kernel, near_Nk, shifts.bandwidth)
    total_N1 = weight_Nk.sum(dim=-1, keepdim=True)
    share_Nk = weight_Nk / total_N1.clamp(min=torch.finfo(weight_Nk.dtype).tiny)
    return torch.einsum("nk,nkle->nle", share_Nk, reference_RLE[index_Nk]), total_N1[:, 0] > 0
