"""The tokens of a model's forward passes, by sequence and position, from the inputs of `model(...)` alone.

B = sequences of a pass, S = tokens of each, T = B x S.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moe_lab.routing.adapters import on_passes


@dataclass(frozen=True)
class PassTokens:
    """The tokens of a forward pass. All [T], on the CPU."""

    real_T: Tensor
    """bool: False for padding."""
    sequence_T: Tensor
    """int64: number of the sequence, from 0. A pass without cached tokens begins new sequences."""
    position_T: Tensor
    """int64: index in the unpadded sequence."""


@contextmanager
def pass_tokens(model: nn.Module, on_pass: Callable[[PassTokens], None]) -> Iterator[None]:
    """Call `on_pass` before every forward pass of the model inside the context."""
    begun, last = 0, 0

    def before(args: tuple, kwargs: dict) -> None:
        nonlocal begun, last
        B, S = _shape(args, kwargs)
        cached = _cached(kwargs)
        if not cached:
            begun, last = begun + last, B
        real_BS, position_BS = _places(kwargs, B, S, cached)
        sequence_BS = (begun + torch.arange(B))[:, None].expand(B, S)
        on_pass(PassTokens(*(each.reshape(-1) for each in (real_BS, sequence_BS, position_BS))))

    handles = on_passes(model, before)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _shape(args: tuple, kwargs: dict) -> tuple[int, int]:
    inputs: Any = args[0] if args else kwargs.get("input_ids")
    inputs = kwargs["inputs_embeds"] if inputs is None else inputs
    return inputs.shape[0], inputs.shape[1]


def _cached(kwargs: dict) -> int:
    cache = kwargs.get("past_key_values")
    return 0 if cache is None else int(cache.get_seq_length())


def _places(kwargs: dict, B: int, S: int, cached: int) -> tuple[Tensor, Tensor]:
    """(whether a token is none of padding, its index in its sequence), each [B, S]."""
    mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
    if isinstance(mask, Tensor) and mask.dim() == 2:
        real = mask.bool().cpu()
        return real[:, -S:], (real.cumsum(dim=1) - 1)[:, -S:]
    if isinstance(positions, Tensor) and positions.dim() == 2:
        return torch.ones(B, S, dtype=torch.bool), positions.cpu().expand(B, S)
    return torch.ones(B, S, dtype=torch.bool), torch.arange(cached, cached + S).expand(B, S)
