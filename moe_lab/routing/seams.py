"""Seams: hooks by which a policy gets and changes a router's decision, for each form of router output.

T = tokens, E = experts, K = experts per token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Routing(NamedTuple):
    """A router's decision for T tokens."""

    logits_TE: Tensor
    weights_TK: Tensor
    index_TK: Tensor


Decide = Callable[[Routing], Routing | None]
"""Called with a decision. Returns another one, or None for no change."""
Seam = Callable[[nn.Module, Decide], list[Any]]
"""(router, decide) -> handles of the installed hooks."""


def triple(router: nn.Module, decide: Decide) -> list[Any]:
    """Routers that return (logits, weights, indices), as most do."""

    def hook(module: nn.Module, args: tuple, output: tuple) -> tuple | None:
        changed = decide(Routing(*output))
        return None if changed is None else tuple(changed)

    return [router.register_forward_hook(hook)]


def llama4(router: nn.Module, decide: Decide) -> list[Any]:
    """Llama-4: (weights of all experts, 0 for experts not chosen; logits)."""

    def hook(module: Any, args: tuple, output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
        weights_TE, logits_TE = output
        index_TK = logits_TE.topk(module.top_k, dim=-1).indices
        changed = decide(Routing(logits_TE, weights_TE.gather(-1, index_TK), index_TK))
        if changed is None:
            return None
        return torch.zeros_like(weights_TE).scatter(
            -1, changed.index_TK, changed.weights_TK
        ), changed.logits_TE

    return [router.register_forward_hook(hook)]


def jetmoe(router: nn.Module, decide: Decide) -> list[Any]:
    """JetMoE: (order of the T x K pairs by expert, token of each, weight of each, pairs per expert, logits)."""

    def hook(module: Any, args: tuple, output: tuple) -> tuple | None:
        order, _, weights, _, logits_TE = output
        index_TK = logits_TE.topk(module.top_k, dim=-1).indices
        weights_TK = torch.empty_like(weights).index_copy(0, order, weights).view_as(index_TK)
        changed = decide(Routing(logits_TE, weights_TK, index_TK))
        if changed is None:
            return None
        expert = changed.index_TK.flatten()
        order = expert.argsort()
        counts = torch.bincount(expert, minlength=logits_TE.shape[-1]).tolist()
        token = order // changed.index_TK.shape[-1]
        return order, token, changed.weights_TK.flatten()[order], counts, changed.logits_TE

    return [router.register_forward_hook(hook)]


def dbrx(block: Any, decide: Decide) -> list[Any]:
    """DBRX: the router returns logits; the decision is changed where the block passes it to the experts."""
    logits: list[Tensor] = []

    def note(module: nn.Module, args: tuple, output: Tensor) -> None:
        logits[:] = [output]

    def hook(module: nn.Module, args: tuple[Tensor, Tensor, Tensor]) -> tuple | None:
        hidden, index_TK, weights_TK = args
        changed = decide(Routing(logits.pop(), weights_TK, index_TK))
        return None if changed is None else (hidden, changed.index_TK, changed.weights_TK)

    return [block.router.register_forward_hook(note), block.experts.register_forward_pre_hook(hook)]
