"""What each decoder layer attends to: everything before a token, the last tokens only, or those of its own chunk.

The cache keeps all columns of all layers, so a window is nothing but a mask: rows can push no token out of it. A token
sees one column for each position up to its own, in the order of positions, whatever lies between them (padding,
other branches of a tree, other tokens' rows). So both windows and chunks follow from what it sees.

B = sequences, Q = new tokens, K = cached columns and new ones.
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
    """How far back a layer attends."""

    window: int | None = None
    """Only this many tokens, the token itself among them."""
    chunk: int | None = None
    """Only positions p with p // chunk the same as the token's."""

    def of(self, visible_BQK: Tensor) -> Tensor:
        """bool [B, Q, K]: those of the columns before and at a token that this layer attends to."""
        if self.window is not None:
            from_last = visible_BQK.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)
            return visible_BQK & (from_last <= self.window)
        if self.chunk is not None:
            position = visible_BQK.cumsum(-1, dtype=torch.int32) - 1
            return visible_BQK & (position // self.chunk == position[..., -1:] // self.chunk)
        return visible_BQK


FULL = AttentionWindow()


def attention_windows(model: nn.Module) -> list[AttentionWindow]:
    """Of every decoder layer, as the model's own cache has it.

    Raises KeyError for layers of another kind.
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
    """The masks of one pass as attention adds them to its scores, [B, 1, Q, K], one for every reach asked for."""

    def __init__(self, visible_BQK: Tensor, dtype: torch.dtype):
        """`visible_BQK`: bool, what each token sees in a layer of full attention."""
        self.visible_BQK, self.dtype = visible_BQK, dtype
        self._made: dict[AttentionWindow, Tensor] = {}

    def of(self, reach: AttentionWindow) -> Tensor:
        if reach not in self._made:
            self._made[reach] = additive_mask(reach.of(self.visible_BQK), self.dtype)
        return self._made[reach]


class WindowHooks:
    """Hooks that give the layers of limited reach their masks. The model itself is given that of full attention, which
    it passes on to all layers as it is."""

    def __init__(self, model: nn.Module):
        layers = zip(decoder_layers(model), attention_windows(model), strict=True)
        self._limited = [(layer, reach) for layer, reach in layers if reach != FULL]
        self._masks: LayerMasks | None = None

    def install(self, stack: ExitStack) -> None:
        for layer, reach in self._limited:
            hook = partial(self._before_layer, reach)
            stack.callback(layer.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def expect(self, masks: LayerMasks | None) -> None:
        """The masks of the next pass; None: the model makes its own."""
        self._masks = masks

    def _before_layer(
        self, reach: AttentionWindow, layer: nn.Module, args: tuple, kwargs: dict
    ) -> tuple[tuple, dict] | None:
        if self._masks is None:
            return None
        return (), layer_inputs(layer, args, kwargs) | {"attention_mask": self._masks.of(reach)}


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """bool [B, Q, K] -> what attention adds to its scores, [B, 1, Q, K] (understood by sdpa and eager alike)."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]
