"""Kernels: the weight of a neighbour by its distance (section 3 and Table 6 of the paper).

Distances are those of unit vectors, sqrt(2 - 2 cos), from 0 to 2. N = questions, k = neighbours of each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from moe_lab.errors import ConfigError

DEGREE = 2
"""Of the polynomial kernel (1 + cos)^degree."""
_TINY = 1e-12


def _linear(distance: Tensor) -> Tensor:
    return (1 - distance.square() / 2).clamp(min=0).log()


def _polynomial(distance: Tensor) -> Tensor:
    return DEGREE * (2 - distance.square() / 2).clamp(min=0).log()


def _matern(scaled: Tensor) -> Tensor:
    return torch.log1p(math.sqrt(3) * scaled) - math.sqrt(3) * scaled


def _gaussian(scaled: Tensor) -> Tensor:
    return -scaled.square() / 2


KERNELS = {"linear": _linear, "polynomial": _polynomial, "matern": _matern, "gaussian": _gaussian}
"""Logarithms of the kernels. Linear: the cosine, 0 below 0; polynomial: (1 + cos)^2; Matérn with smoothness 3/2."""
SCALED = ("matern", "gaussian")
"""Kernels with a bandwidth."""


def kernel(name: str, distance_Nk: Tensor, bandwidth: float | None = None) -> Tensor:
    """float32 [N, k]: the kernel, divided by its largest value for each question, so that no bandwidth makes all
    weights 0. A weighted mean stays the same. The kernel is 0 where the distance is infinite (no neighbour).

    Args:
        name: one of `KERNELS`.
        bandwidth: of `SCALED` kernels; None: the (lower) median of each question's own distances.

    Raises ConfigError for a bandwidth with a kernel that takes none.
    """
    if bandwidth is not None and name not in SCALED:
        raise ConfigError(
            f"The {name} kernel has no bandwidth: leave method.bandwidth out, or use method.kernel=gaussian or matern."
        )
    if not distance_Nk.numel():
        return distance_Nk.float()
    there_Nk = distance_Nk.isfinite()
    distance_Nk = distance_Nk.float().where(there_Nk, 0.0)
    if name in SCALED:
        distance_Nk = distance_Nk / (_medians(distance_Nk, there_Nk) if bandwidth is None else bandwidth)
    logs_Nk = KERNELS[name](distance_Nk).where(there_Nk, -torch.inf)
    largest_N1 = logs_Nk.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(logs_Nk.dtype).min)
    return (logs_Nk - largest_N1).exp()


def _medians(distance_Nk: Tensor, there_Nk: Tensor) -> Tensor:
    """[N, 1]: the median distance of the neighbours; just above 0 where all distances are 0."""
    medians_N1 = distance_Nk.where(there_Nk, torch.nan).nanmedian(dim=-1, keepdim=True).values
    return medians_N1.nan_to_num(1.0).clamp(min=_TINY)
