"""Attention masks of each decoder layer: all tokens before a token, a window of the last ones, or its chunk.

The cache keeps all slots of all layers, so a window is only a mask, and routing samples cannot push a token out of it.
A token attends to one slot for each position up to its own, in order. The slots between them (padding, other branches
of a tree, samples of other tokens) are masked. So windows and chunks follow from the full mask.

B = sequences, Q = new tokens, K = cached slots and new ones.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from transformers.cache_utils import get_layer_types_and_kwargs

from moe_lab.engine.forward.layers import decoder_layers, layer_inputs


@dataclass(frozen=True)
class AttentionWindow:
    """How far back a layer attends; everything by default."""

    window: int | None = None
    """Number of last tokens, the token itself included."""
    chunk: int | None = None
    """Size of a chunk: positions p whose p // chunk equals the token's."""

    def of(self, visible_BQK: Tensor) -> Tensor:
        """bool [B, Q, K]: the visible slots that this layer attends to."""
        if self.window is not None:
            from_last = visible_BQK.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)
            return visible_BQK & (from_last <= self.window)
        if self.chunk is not None:
            position = visible_BQK.cumsum(-1, dtype=torch.int32) - 1
            return visible_BQK & (position // self.chunk == position[..., -1:] // self.chunk)
        return visible_BQK


FULL = AttentionWindow()


def attention_windows(model: nn.Module) -> list[AttentionWindow]:
    """The window of every decoder layer, as the model's own cache has it.

    Raises KeyError for a layer of another kind.
    """
    kinds, options = get_layer_types_and_kwargs(model.config.get_text_config(decoder=True))
    return [
        {
            "full_attention": FULL,
            "sliding_attention": AttentionWindow(window=option.get("sliding_window")),
            "chunked_attention": AttentionWindow(chunk=option.get("sliding_window")),
        }[kind]
        for kind, option in zip(kinds, options, strict=True)
    ]


class LayerMasks:
    """The masks of one pass, [B, 1, Q, K], which attention adds to its scores; one for each kind of window."""

    def __init__(self, visible_BQK: Tensor, dtype: torch.dtype):
        """`visible_BQK`: bool, the slots that each token attends to in a layer of full attention."""
        self.visible_BQK, self.dtype = visible_BQK, dtype
        self._made: dict[AttentionWindow, Tensor] = {}

    def of(self, window: AttentionWindow) -> Tensor:
        if window not in self._made:
            self._made[window] = additive_mask(window.of(self.visible_BQK), self.dtype)
        return self._made[window]


class WindowHooks:
    """Hooks that pass their masks to the layers with a window. The model gets the mask of full attention, which it
    passes to all layers unchanged."""

    def __init__(self, model: nn.Module):
        layers = zip(decoder_layers(model), attention_windows(model), strict=True)
        self._limited = [(layer, window) for layer, window in layers if window != FULL]
        self._masks: LayerMasks | None = None

    def install(self, stack: ExitStack) -> None:
        for layer, window in self._limited:
            hook = partial(self._before_layer, window)
            stack.callback(layer.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def expect(self, masks: LayerMasks | None) -> None:
        """Set the masks of the next pass; None: the model makes its own."""
        self._masks = masks

    def _before_layer(
        self, window: AttentionWindow, layer: nn.Module, args: tuple, kwargs: dict
    ) -> tuple[tuple, dict] | None:
        if self._masks is None:
            return None
        return (), layer_inputs(layer, args, kwargs) | {"attention_mask": self._masks.of(window)}


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """bool [B, Q, K] -> the mask that attention adds to its scores, [B, 1, Q, K], for sdpa and eager attention."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]
