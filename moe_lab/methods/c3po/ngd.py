"""Neighbourhood gradient descent (equations 1 and 3); with the question itself as its neighbour, the oracle (2).

N = questions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from moe_lab.methods.c3po.contrast import Contrast
from moe_lab.methods.c3po.loss import NeighbourLoss, check_losses
from moe_lab.methods.c3po.pathway import Pathways, Watch, unwatched

EPS = 1e-6
"""Of Adam. Its usual 1e-8 makes steps of rounding errors where the gradient is 0 (experts outside the top-k in families
that renormalize, with relax=topk)."""


@dataclass(frozen=True)
class Descent:
    """How pathways go down the loss."""

    steps: int = 10
    update: str = "adam"
    """adam, or gd: plain gradient descent (equation 1)."""
    rates: tuple[float, float] = (0.1, 1e-4)
    """First and last learning rate."""
    schedule: str = "cosine"
    """cosine or step: from the first rate to the last; fixed: the first throughout."""
    relax: str = "core"
    """Which experts contribute meanwhile: all core experts, or the router's topk."""


def learning_rates(schedule: str, first: float, last: float, steps: int) -> list[float]:
    """The rate of each step.

    "cosine" falls like half a cosine and ends at `last`; "step" divides the steps among the powers of ten from `first`
    to `last`, equally; "fixed" stays at `first`.
    """
    if schedule == "fixed" or first == last:
        return [first] * steps
    if schedule == "cosine":
        return [
            last + (first - last) * (1 + math.cos(math.pi * step / max(1, steps - 1))) / 2
            for step in range(steps)
        ]
    levels = max(2, round(abs(math.log10(first / last))) + 1)
    return [first * (last / first) ** (step * levels // steps / (levels - 1)) for step in range(steps)]


def ngd(
    pathways: Pathways, loss: NeighbourLoss | Contrast, descent: Descent, watch: Watch = unwatched
) -> tuple[Pathways, Tensor]:
    """(changed pathways, losses float32 [steps + 1, N]): before each step and after the last.

    All questions at once: each has its own parameters and loss, so that none depends on what it is batched with.
    Those without neighbours keep their pathways, and their loss is NaN. `watch` is shown them in the same states.

    Raises RoutingError where the loss of a question with neighbours is NaN.
    """
    changed = pathways.copy()
    optimizer = _optimizer(descent.update, changed.theta)
    losses = []
    for rate in learning_rates(descent.schedule, *descent.rates, descent.steps):
        watch(changed)
        loss_N, changed.theta.grad = loss.gradient(changed, descent.relax)
        losses.append(loss.seen(loss_N))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    changed.theta.grad = None
    watch(changed)
    losses.append(loss.value(changed, descent.relax))
    found = torch.stack(losses)
    check_losses(found, loss.found_N)
    return changed, found


def _optimizer(update: str, theta: Tensor) -> torch.optim.Optimizer:
    if update == "adam":
        return torch.optim.Adam([theta], lr=0.0, eps=EPS)
    return torch.optim.SGD([theta], lr=0.0)
