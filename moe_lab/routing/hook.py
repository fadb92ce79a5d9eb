"""Policies on routers: installed by a context manager, gone without a trace when it ends.

    with routed(model, policy):
        model(input_ids)

T = tokens of a forward pass (sequences one after another), E = experts, K = experts per token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor, nn

from moe_lab.errors import ModelError, RoutingError
from moe_lab.routing.families import UNSUPPORTED, Family, family_of, supported
from moe_lab.routing.seams import Decide, Routing


@dataclass(frozen=True)
class Router:
    """A router of a model."""

    layer: int
    """Number of its MoE layer, counted from 0."""
    name: str
    """Its module name in the model."""
    module: nn.Module
    family: Family
    block: nn.Module
    """The module that calls it."""

    def scores(self, logits_TE: Tensor) -> Tensor:
        """float32 [T, E]: what the router chooses experts by, and noise is added to."""
        scores_TE = self.family.rule.scores(self.module, logits_TE)
        bias_E = self._bias
        return scores_TE if bias_E is None else scores_TE + bias_E.float().reshape(-1)

    def choose(self, scores_TE: Tensor, k: int) -> Tensor:
        """int64 [T, k]: the experts that the router takes at these scores."""
        return self.family.rule.choose(self.module, scores_TE, k)

    def weights(self, logits_TE: Tensor, index_TK: Tensor) -> Tensor:
        """Combine weights [T, K] of the experts `index_TK`, as the router itself computes them."""
        return self.family.rule.weights(self.module, logits_TE, index_TK)

    @property
    def _bias(self) -> Tensor | None:
        """[E]; some routers own it, others are given that of their block."""
        path = self.family.bias
        if path is None:
            return None
        owner = self.module if hasattr(self.module, path.partition(".")[0]) else self.block
        return attrgetter(path)(owner)


Policy = Callable[[Router, Routing], Routing | None]
"""Sees what a router decided and may return other weights and indices; None leaves the decision as it is."""


def find_routers(model: nn.Module) -> list[Router]:
    """All routers of a model in the order of its layers; empty for a model that has none we know."""
    routers: list[Router] = []
    for name, module in model.named_modules():
        if family := family_of(module):
            block = model.get_submodule(name.rpartition(".")[0])
            if family.block in (None, type(block).__name__):
                routers.append(Router(len(routers), name, module, family, block))
    return routers


def require_routers(model: nn.Module) -> list[Router]:
    """Like `find_routers`, but none is a ModelError that says what can be done."""
    if routers := find_routers(model):
        return routers
    raise ModelError(no_router_message(type(model).__name__, getattr(model.config, "model_type", "")))


def no_router_message(model: str, model_type: str) -> str:
    """What a user reads whose model has no router that we know."""
    if reason := UNSUPPORTED.get(model_type):
        return f"{model} cannot be routed otherwise: {reason}.\n`method=base` runs it."
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
    handles = [
        handle
        for router in routers
        for handle in router.family.seam(router.module, watch.decide(router, policy))
    ]
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

    def decide(self, router: Router, policy: Policy) -> Decide:
        def decide(routing: Routing) -> Routing | None:
            self.nan[router.layer] = routing.logits_TE.isnan().any()
            return policy(router, routing)

        return decide

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
