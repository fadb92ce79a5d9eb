"""Loss-free load balancing (Wang et al. 2024): a bias on the scores by which experts are chosen, moved after each step.

No optimizer touches the bias, which is a buffer of the router. Nothing moves it but this callback, so fine-tuning, with
its routers frozen or not, leaves it as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from moe_lab.methods.pretrain.losses import load
from moe_lab.methods.pretrain.routing import Decisions


class LossFreeBalance(TrainerCallback):
    """Raises by `rate` the bias of experts with less than the mean load of an optimizer step; lowers the others'."""

    def __init__(self, model: nn.Module, rate: float):
        self.rate = rate
        self.routers = [each for each in model.modules() if getattr(each, "selection_bias", None) is not None]
        """Not their biases: DistributedDataParallel puts other tensors in the place of buffers."""
        self.loads: list[Tensor] = [torch.zeros_like(each.selection_bias) for each in self.routers]

    def count(self, layers: list[Decisions]) -> None:
        """Add the decisions of a pass."""
        for total_E, layer in zip(self.loads, layers, strict=True):
            total_E += load(layer.index_TK, len(total_E))

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for router, total_E in zip(self.routers, self.loads, strict=True):
            if args.world_size > 1:
                torch.distributed.all_reduce(total_E)
            router.selection_bias += self.rate * (total_E.mean() - total_E).sign()
            total_E.zero_()
