"""The decoder layers of a transformers model: their inputs and attention masks, and where routing
samples fork.

The cache keeps all slots of all layers, so a sliding window is only a mask, and routing samples
cannot push a token out of it. A token attends to one slot for each position up to its own, in
order. The slots between them (padding, other branches of a tree, samples of other tokens) are
masked. So windows and chunks follow from the full mask.

B = sequences, S = new tokens, Q = new tokens of a mask, K = cached slots and new ones.
"""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import get_layer_types_and_kwargs

from moe_lab.errors import ConfigError, RoutingError
from moe_lab.models.transformers_internals import attention_of, keeps_states
from moe_lab.routing import Router, find_routers
from moe_lab.routing.passes import CACHE

_PER_TOKEN = ("position_ids", "position_embeddings")
"""Inputs of a decoder layer with a value for each token."""
_LAYER_INPUTS = {
    "hidden_states",
    "attention_mask",
    CACHE,
    *_PER_TOKEN,
    "use_cache",
    "output_attentions",
    "output_router_logits",
    "per_layer_input",
    "shared_kv_states",
    "moe_mm_token_type_ids",
}
"""All inputs of layers that can take routing samples. Two of Gemma's are unused in its MoE models,
and ERNIE's types of tokens are None in a text."""
_MASKED_ATTENTION = ("sdpa", "eager")
_MASKED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers that keep keys and values alone, and attend to them by a mask."""


def output_head(model: Any) -> Any:
    """The module that computes a model's logits; None for a model without one.

    Some image-and-text models hold a whole causal language model (`nemotron_h_omni`), whose head it
    is.
    """
    head = model.get_output_embeddings()
    if head is None:
        return model.get_decoder().get_output_embeddings()
    return head


def hidden_state_model(model: Any) -> Any:
    """The part of a model that computes the hidden states of a text, without the output head."""
    return model.get_decoder().get_decoder()


def decoder_layers(model: Any) -> list[nn.Module]:
    """The decoder layers of a transformers model, in order; empty if they are not found."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.get_decoder().modules():
        for child in module.children():
            if isinstance(child, nn.ModuleList) and len(child) == count:
                return list(child)
    return []


def fork_router(model: nn.Module, first_noisy: int) -> Router:
    """The router of MoE layer `first_noisy`, or of the last MoE layer if there are fewer."""
    routers = find_routers(model)
    return routers[min(first_noisy, len(routers) - 1)]


def fork_layer(model: nn.Module, first_noisy: int) -> int:
    """The number of the decoder layer that has the `fork_router`."""
    router = fork_router(model, first_noisy)
    layers = decoder_layers(model)
    return next(i for i, layer in enumerate(layers) if router.module in layer.modules())


def layer_inputs(layer: nn.Module, args: tuple, kwargs: dict) -> dict[str, Any]:
    """The inputs of a decoder layer by name: models pass some by position."""
    return dict(zip(argument_names(type(layer).forward), args, strict=False)) | kwargs


@cache
def argument_names(forward: Callable) -> list[str]:
    """The names of a method's arguments, without `self`."""
    return list(inspect.signature(forward).parameters)[1:]


class PerToken:
    """Changes the per-token inputs of layers, once for all layers with the same inputs.

    Args:
        change: called with a tensor whose first dimension is B, or 1 for all sequences.
        masks: change attention masks too.
    """

    def __init__(self, change: Callable[[Tensor], Tensor], masks: bool = False):
        self.change = change
        self.names = (*_PER_TOKEN, "attention_mask") if masks else _PER_TOKEN
        self._changed: list[tuple[Tensor, Tensor]] = []
        """Each input of a layer so far, and what became of it."""

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The changed inputs of a layer. Hidden states stay.

        Raises RoutingError for a tensor of which it is not known whether it is per token.
        """
        known = (*_PER_TOKEN, "hidden_states", "attention_mask")
        for name, value in inputs.items():
            if isinstance(value, Tensor) and name not in known:
                raise RoutingError(
                    f"Layers that take `{name}` cannot take routing samples; use method=base."
                )
        changed_inputs = dict(inputs)
        for name in self.names:
            if name in inputs:
                changed_inputs[name] = self._changed_input(inputs[name], name)
        return changed_inputs

    def _changed_input(self, value: Any, name: str) -> Any:
        """The changed input `name`: a tensor is changed once for all layers that get the same
        object, a tuple part by part. Other values, such as None, stay."""
        if isinstance(value, tuple):
            return tuple(self._changed_input(part, name) for part in value)
        if not isinstance(value, Tensor):
            return value
        for unchanged, changed in self._changed:
            if unchanged is value:
                return changed
        if name == "position_ids" and value.dim() == 3:  # [axes, B, S], equal in a text
            changed = self.change(value[0]).expand(len(value), -1, -1)
        else:
            changed = self.change(value)
        self._changed.append((value, changed))
        return changed


def runs_on_kv_cache(model: Any) -> bool:
    """Whether this model can run over a `KVCache`, whose slots are selected by a mask."""
    return kv_cache_obstacle(model) is None


def kv_cache_obstacle(model: Any) -> str | None:
    """Why this model cannot run over a `KVCache`; None if it can.

    Some models keep more than keys and values (recurrent states, keys of an index, keys shared by
    layers), pass unknown inputs to their layers (routers of words, sentences and expert choice),
    derive positions from the cache's length, or take no masks.
    """
    config = model.config.get_text_config(decoder=True)
    layers = decoder_layers(model)
    if not layers or len(layers) != len(get_layer_types_and_kwargs(config)[0]):
        return "its decoder layers were not found"
    if output_head(model) is None:
        return "it has no output head"
    if attention_of(config) not in _MASKED_ATTENTION:
        return f"attn_implementation={attention_of(config)} takes no mask for single tokens"
    if is_recurrent(model):
        return "its layers keep more than keys and values"
    for router in find_routers(model):
        if not any(router.module in layer.modules() for layer in layers):
            return f"the router {router.name} is outside of the decoder layers"
    if getattr(config, "hidden_size_per_layer_input", None):
        return "its layers take inputs of their own (hidden_size_per_layer_input)"
    if _counts_slots(config):
        return "it scales queries by the length of the cache (attn_temperature_tuning)"
    if "position_ids" not in argument_names(type(model).forward):
        return "it takes no position_ids"
    for layer in layers:
        inputs = set(argument_names(type(layer).forward)) - {"args", "kwargs"}
        missing = sorted({"attention_mask", CACHE} - inputs)
        if missing:
            return f"{type(layer).__name__} takes no {' and no '.join(missing)}"
        unknown = sorted(inputs - _LAYER_INPUTS)
        if unknown:
            return f"{type(layer).__name__} takes {', '.join(unknown)}"
    return None


def require_masks(model: Any) -> None:
    """Raise ConfigError for a model with the flash or flex kernels, which take no mask for single
    tokens."""
    config = model.config.get_text_config(decoder=True)
    if attention_of(config) not in _MASKED_ATTENTION and not is_recurrent(model):
        raise ConfigError(
            f"attn_implementation={attention_of(config)} takes no mask of routing samples and "
            "answer choices. Call "
            'model.set_attn_implementation("sdpa") first.'
        )


def is_recurrent(model: Any) -> bool:
    """Whether some layer keeps more than keys and values of each token (a recurrent state)."""
    kinds, _ = get_layer_types_and_kwargs(model.config.get_text_config(decoder=True))
    return keeps_states(model) or not set(kinds) <= _MASKED_LAYERS


def reads_the_batch(model: Any) -> bool:
    """Whether padding after a text changes its scores where no mask excludes it (expert choice)."""
    return not getattr(model, "is_causal_router", True)


def reads_padding(model: Any) -> bool:
    """Whether padding before a prompt may change its result: in a recurrent state, or in positions
    that are derived from the cache's length."""
    return is_recurrent(model) or _counts_slots(model.config.get_text_config(decoder=True))


def _counts_slots(config: Any) -> bool:
    """Whether layers without rotary positions scale their queries by a position derived from the
    cache's length (Llama 4)."""
    scales_queries = bool(getattr(config, "attn_temperature_tuning", False))
    return scales_queries and not all(config.no_rope_layers)


@dataclass(frozen=True)
class AttentionWindow:
    """The earlier tokens that a layer attends to; all by default."""

    window: int | None = None
    """Number of last tokens, the token itself included."""
    chunk: int | None = None
    """Size of a chunk: positions p whose p // chunk equals the token's."""

    def limit(self, visible_BQK: Tensor) -> Tensor:
        """bool [B, Q, K]: the visible slots that this layer attends to.

        A token's last visible slot is its own. With `window=2`, it and the visible slot before it
        are left.
        """
        if self.window is not None:
            # 1 for the token's own slot, 2 for the visible slot before it
            count_from_end_BQK = visible_BQK.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)
            return visible_BQK & (count_from_end_BQK <= self.window)
        if self.chunk is not None:
            position_BQK = visible_BQK.cumsum(-1, dtype=torch.int32) - 1
            own_position_BQ1 = position_BQK[..., -1:]
            is_same_chunk_BQK = position_BQK // self.chunk == own_position_BQ1 // self.chunk
            return visible_BQK & is_same_chunk_BQK
        return visible_BQK


FULL = AttentionWindow()


def attention_windows(model: nn.Module) -> list[AttentionWindow]:
    """The window of every decoder layer, as the model's own cache has it.

    Raises KeyError for a layer of another kind.
    """
    kinds, options = get_layer_types_and_kwargs(model.config.get_text_config(decoder=True))
    windows = []
    for kind, option in zip(kinds, options, strict=True):
        size = option.get("sliding_window")
        window_of = {
            "full_attention": FULL,
            "sliding_attention": AttentionWindow(window=size),
            "chunked_attention": AttentionWindow(chunk=size),
        }
        windows.append(window_of[kind])
    return windows


class LayerMasks:
    """The masks of one pass, [B, 1, Q, K], which attention adds to its scores; one for each kind of
    window."""

    def __init__(self, visible_BQK: Tensor, dtype: torch.dtype):
        """`visible_BQK`: bool, the slots that each token attends to in a layer of full
        attention."""
        self.visible_BQK = visible_BQK
        self.dtype = dtype
        self._mask_of: dict[AttentionWindow, Tensor] = {}

    def of(self, window: AttentionWindow) -> Tensor:
        """The mask of the layers with this window, computed once."""
        if window not in self._mask_of:
            visible_BQK = window.limit(self.visible_BQK)
            zero = visible_BQK.new_zeros((), dtype=self.dtype)
            lowest = torch.finfo(self.dtype).min
            self._mask_of[window] = torch.where(visible_BQK, zero, lowest)[:, None]
        return self._mask_of[window]


class WindowHooks:
    """Hooks that pass their masks to the layers with a window.

    The model gets the mask of full attention, which it passes to all layers unchanged.
    """

    def __init__(self, model: nn.Module):
        self._limited: list[tuple[nn.Module, AttentionWindow]] = []
        for layer, window in zip(decoder_layers(model), attention_windows(model), strict=True):
            if window != FULL:
                self._limited.append((layer, window))
        self._masks: LayerMasks | None = None

    def install(self, stack: ExitStack) -> None:
        """Register the hooks until the stack is closed."""
        for layer, window in self._limited:
            hook = partial(self._before_layer, window)
            stack.callback(layer.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def expect(self, masks: LayerMasks | None) -> None:
        """Set the masks of the next pass; None: the model computes its own."""
        self._masks = masks

    def _before_layer(
        self, window: AttentionWindow, layer: nn.Module, args: tuple, kwargs: dict
    ) -> tuple[tuple, dict] | None:
        """(no positional arguments, the layer's inputs with the mask of its window); None:
        unchanged."""
        if self._masks is None:
            return None
        inputs = layer_inputs(layer, args, kwargs)
        inputs["attention_mask"] = self._masks.of(window)
        return (), inputs
