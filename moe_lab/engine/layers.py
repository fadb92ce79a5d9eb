"""The decoder layers of a transformers model: which they are, what they take, and where rows may part."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from moe_lab.routing import Router, find_routers

_LAYER_INPUTS = {"attention_mask", "position_ids", "position_embeddings", "past_key_values"}


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The decoder layers of a transformers model, in order; empty where they cannot be told."""
    place = _place_of_layers(model)
    return list(getattr(*place)) if place else []


def _place_of_layers(model: nn.Module) -> tuple[nn.Module, str] | None:
    """(module, attribute) of the list of decoder layers."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == count:
                return module, name
    return None


def parting_layer(model: nn.Module, first_noisy: int) -> tuple[int, Router]:
    """(number of the decoder layer, its router) of MoE layer `first_noisy`, or of the last one if there are fewer."""
    routers = find_routers(model)
    router = routers[min(first_noisy, len(routers) - 1)]
    layers = decoder_layers(model)
    return next(
        i for i, layer in enumerate(layers) if any(m is router.module for m in layer.modules())
    ), router


@contextmanager
def only_layers_from(model: nn.Module, first: int) -> Iterator[None]:
    """Inside the context the model has its decoder layers from `first` on alone: give it their `inputs_embeds`."""
    place = _place_of_layers(model)
    assert place is not None
    layers = getattr(*place)
    setattr(*place, nn.ModuleList(list(layers)[first:]))
    try:
        yield
    finally:
        setattr(*place, layers)


def runs_rows(model: nn.Module) -> bool:
    """Whether this model can run over a `RowCache`: full attention in every layer, addressed by a mask.

    Recurrent states, sliding windows and layers that take other inputs cannot be given rows this way.
    """
    config = model.config.get_text_config()
    layers = decoder_layers(model)
    if not layers or model.get_output_embeddings() is None or getattr(model, "_is_stateful", False):
        return False
    if config._attn_implementation not in ("sdpa", "eager"):
        return False
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        return False
    if getattr(config, "layer_types", None) is None and getattr(config, "sliding_window", None):
        return False
    inputs = [set(inspect.signature(layer.forward).parameters) for layer in layers]
    return all(_LAYER_INPUTS <= names for names in inputs)
