"""What an object that was made of a model relies on, and what a caller may change afterwards."""

from dataclasses import dataclass

import torch
from torch import nn

from moe_lab.errors import ModelError
from moe_lab.routing import find_routers
from moe_lab.routing.passes import is_peft


@dataclass(frozen=True)
class ModelState:
    """The device, the routers and the adapters of a model."""

    device: torch.device
    routers: tuple[int, ...]
    """The identities of the routers' modules."""
    adapters: tuple[tuple[str, ...], ...]
    """Of each layer with PEFT adapters: those that are active."""


def state_of(model: nn.Module) -> ModelState:
    """The present state of a model."""
    routers = tuple(id(router.module) for router in find_routers(model))
    adapters = []
    for module in model.modules():
        if is_peft(module) and hasattr(module, "active_adapters"):
            active = () if module.disable_adapters else tuple(module.active_adapters)
            adapters.append(active)
    return ModelState(next(model.parameters()).device, routers, tuple(adapters))


def check_evaluation_mode(model: nn.Module) -> None:
    """Raise ModelError for a model of which some part is in training mode."""
    if any(module.training for module in model.modules()):
        raise ModelError(
            f"{type(model).__name__} is in training mode, which changes its numbers. Call "
            "model.eval() first."
        )


def check_unchanged(model: nn.Module, before: ModelState, label: str) -> None:
    """Raise ModelError for a model in training mode, and for one whose state is another than
    `before`.

    `label` names the object that was made of the model.
    """
    check_evaluation_mode(model)
    now = state_of(model)
    for what in ("device", "routers", "adapters"):
        if getattr(now, what) != getattr(before, what):
            raise ModelError(
                f"{label}: the {what} of {type(model).__name__} changed after {label} was made. "
                f"Make a new {label}."
            )
