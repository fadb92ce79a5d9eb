"""Recording of routing decisions.

with record(model) as routes:
    model(input_ids, attention_mask=attention_mask)
routes.index[3]     # MoE layer 3: int64 [tokens, k]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from moe_lab.routing.hook import Router, Routing, routed


class Record:
    """Logits, weights and indices per MoE layer, of all tokens of all forward passes, without padding."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Routing]] = {}
        self._keep_T: Tensor | None = None

    def keep(self, mask: Tensor | None) -> None:
        """Set the tokens of the next forward pass that are recorded: a bool mask with T elements; None: all."""
        self._keep_T = None if mask is None else mask.reshape(-1).bool()

    @property
    def logits(self) -> list[Tensor]:
        """Per MoE layer: [tokens, experts], in the router's dtype."""
        return self._stacked(0)

    @property
    def weights(self) -> list[Tensor]:
        """Per MoE layer: [tokens, k]."""
        return self._stacked(1)

    @property
    def index(self) -> list[Tensor]:
        """Per MoE layer: int64 [tokens, k]."""
        return self._stacked(2)

    def _stacked(self, field: int) -> list[Tensor]:
        return [torch.cat([part[field] for part in self._parts[layer]]) for layer in sorted(self._parts)]

    def __call__(self, router: Router, routing: Routing) -> None:
        kept = routing if self._keep_T is None else Routing(*(tensor[self._keep_T] for tensor in routing))
        self._parts.setdefault(router.layer, []).append(
            Routing(*(tensor.detach().clone() for tensor in kept))
        )


@contextmanager
def record(model: nn.Module) -> Iterator[Record]:
    """Record all routing decisions of `model` inside the context.

    Tokens with 0 in a two-dimensional `attention_mask` of the model are padding.
    """
    routes = Record()

    def before(module: nn.Module, args: tuple, kwargs: dict) -> None:
        mask = kwargs.get("attention_mask")
        routes.keep(mask[:, -_length(args, kwargs) :] if mask is not None and mask.dim() == 2 else None)

    handle = model.register_forward_pre_hook(before, with_kwargs=True)
    try:
        with routed(model, routes):
            yield routes
    finally:
        handle.remove()


def _length(args: tuple, kwargs: dict) -> int:
    """Tokens per sequence of this forward pass. The mask may also cover cached tokens."""
    inputs: Any = args[0] if args else kwargs.get("input_ids", kwargs.get("inputs_embeds"))
    return inputs.shape[1]
