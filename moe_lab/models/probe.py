"""A cheap test that routing methods act on a model that is quantized, offloaded or split."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from moe_lab.errors import ModelError, RoutingError
from moe_lab.routing import Router, Routing, find_routers, routed

TOKENS = 4
ON_DISK = (
    "cannot be routed with layers on disk: parameters of its routers are read when they are not in memory. It needs "
    "memory for all of its weights."
)


def prove_seam(model: Any, device: torch.device, source: str) -> None:
    """Check in one forward pass that every router is called and applies its rule.

    Raises ModelError otherwise, for example if a quantized kernel bypasses the routers, or if parameters of a router
    are on disk when they are read.
    """
    ids = torch.arange(TOKENS, device=device)[None]
    try:
        with torch.no_grad(), _refuse_offloaded(model, source), routed(model, _check_rule):
            model(ids, use_cache=False)
    except RoutingError as error:
        raise ModelError(f"{source} cannot be routed as it was loaded. {error}") from error
    except RuntimeError as error:
        if "meta" not in str(error):
            raise
        raise ModelError(f"{source} {ON_DISK}") from error


def _check_rule(router: Router, routing: Routing) -> None:
    weights_TK = router.weights(routing.logits_TE, routing.index_TK)
    if not torch.allclose(weights_TK.float(), routing.weights_TK.float(), rtol=1e-2, atol=1e-4):
        raise RoutingError(
            f"The router {router.name} weighs its experts otherwise than {router.family.name} does."
        )


@contextmanager
def _refuse_offloaded(model: nn.Module, source: str) -> Iterator[None]:
    """Raise ModelError for a router that reads offloaded parameters itself.

    Such parameters come to memory when their own module is called. Before that they are meta tensors, with which torch
    may multiply without an error, giving arbitrary numbers.
    """
    handles = [handle for router in find_routers(model) for handle in _watch_parts(router.module, source)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _watch_parts(router: nn.Module, source: str) -> list[RemovableHandle]:
    parts = [part for part in router.children() if _offloaded(part)]
    called: set[nn.Module] = set()

    def after_router(module: nn.Module, args: tuple, out: object) -> None:
        if not called.issuperset(parts):
            raise ModelError(f"{source} {ON_DISK}")

    def after_part(part: nn.Module, args: tuple, out: object) -> None:
        called.add(part)

    handles = [part.register_forward_hook(after_part) for part in parts]
    return [*handles, router.register_forward_hook(after_router)]


def _offloaded(module: nn.Module) -> bool:
    return any(parameter.device.type == "meta" for parameter in module.parameters(recurse=False))
