"""Policies on routers: installed by a context manager, gone without a trace when it ends.

    with routed(model, policy):
        model(input_ids)

T = tokens of a forward pass (sequences one after another), E = experts, K = experts per token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from moe_lab.errors import ModelError, RoutingError
from moe_lab.routing.families import Family, family_of, supported


class Routing(NamedTuple):
    """What a router decided for T tokens."""

    logits_TE: Tensor
    weights_TK: Tensor
    index_TK: Tensor


@dataclass(frozen=True)
class Router:
    """A router of a model."""

    layer: int
    """Number of its MoE layer, counted from 0."""
    name: str
    """Its module name in the model."""
    module: nn.Module
    family: Family


Policy = Callable[[Router, Routing], Routing | None]
"""Sees what a router decided and may return other weights and indices; None leaves the decision as it is."""


def find_routers(model: nn.Module) -> list[Router]:
    """All routers of a model in the order of its layers; empty for a model that has none we know."""
    found = ((name, module, family_of(module)) for name, module in model.named_modules())
    known = [(name, module, family) for name, module, family in found if family]
    return [Router(layer, name, module, family) for layer, (name, module, family) in enumerate(known)]


def require_routers(model: nn.Module) -> list[Router]:
    """Like `find_routers`, but none is a ModelError that says what can be done."""
    if routers := find_routers(model):
        return routers
    raise ModelError(no_router_message(type(model).__name__))


def no_router_message(model: str) -> str:
    """What a user reads whose model has no router that we know."""
    return (
        f"No router was found in {model}: it is a dense model or of a family that is not supported.\n"
        f"Supported families: {', '.join(supported())}. `method=base` runs any causal language model."
    )


@contextmanager
def routed(model: nn.Module, policy: Policy, first: int = 0) -> Iterator[list[Router]]:
    """Let `policy` see, and change, every routing decision of `model` inside the context.

    Contexts nest: an inner policy sees what the outer one decided. Leaving restores the model exactly, also after an
    exception.

    Args:
        first: MoE layers before this one are left alone, and need not take part in forward passes.

    Raises:
        ModelError: the model has no router that we know.
        RoutingError: a forward pass went by a router without calling it (a fused kernel, say), or a router's logits
            are NaN. Both name the module.
    """
    routers = require_routers(model)[first:]
    watch = _Watch(routers)
    handles = [router.module.register_forward_hook(watch.hook(router, policy)) for router in routers]
    handles.append(model.register_forward_pre_hook(watch.start))
    handles.append(model.register_forward_hook(watch.finish))
    try:
        yield routers
    finally:
        for handle in handles:
            handle.remove()


class _Watch:
    """Sees to it that every router is called, and with numbers, in every forward pass of the model."""

    def __init__(self, routers: list[Router]):
        self.routers = routers
        self.nan: dict[int, Tensor] = {}

    def start(self, model: nn.Module, args: tuple) -> None:
        self.nan.clear()

    def hook(self, router: Router, policy: Policy) -> Callable:
        def on_forward(module: nn.Module, args: tuple, output: tuple) -> tuple | None:
            routing = Routing(*output)
            self.nan[router.layer] = routing.logits_TE.isnan().any()
            changed = policy(router, routing)
            return None if changed is None else tuple(changed)

        return on_forward

    def finish(self, model: nn.Module, args: tuple, output: object) -> None:
        for router in self.routers:
            if router.layer not in self.nan:
                raise RoutingError(
                    f"The router {router.name} was bypassed: the model ran without calling it (fused or quantized "
                    "kernels do this), so no routing method can act.\n"
                    "Load the model unquantized and with model.experts_implementation=grouped_mm, or use method=base."
                )
        nan_L = torch.stack([self.nan[router.layer].cpu() for router in self.routers]).tolist()
        if any(nan_L):
            router = self.routers[nan_L.index(True)]
            raise RoutingError(
                f"The logits of the router {router.name} (MoE layer {router.layer}) are NaN. "
                "Try dtype=bfloat16 or dtype=float32; float16 overflows in many models."
            )
