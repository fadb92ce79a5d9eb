"""How many MoE layers a model has, told from its configuration alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CountLayers = Callable[[Any], int]
"""Model configuration -> number of MoE layers."""


def every_layer(config: Any) -> int:
    """All decoder layers."""
    return config.num_hidden_layers


def sparse_step(config: Any) -> int:
    """Every `decoder_sparse_step`-th layer, except those named dense."""
    step, dense = config.decoder_sparse_step, config.mlp_only_layers
    layers = range(config.num_hidden_layers)
    return sum(config.num_experts > 0 and layer not in dense and (layer + 1) % step == 0 for layer in layers)


def listed(config: Any) -> int:
    """As `mlp_layer_types` says."""
    return list(config.mlp_layer_types).count("sparse")


def after(attribute: str) -> CountLayers:
    """All layers but the first ones, whose number this attribute holds."""
    return lambda config: max(0, config.num_hidden_layers - getattr(config, attribute))


def moe_blocks(config: Any) -> int:
    """As `layers_block_type` says, for models whose mixers and MoE blocks are layers of their own."""
    return list(config.layers_block_type).count("moe")


def granite_hybrid(config: Any) -> int:
    """Every layer, or none: the family has dense models as well."""
    return config.num_hidden_layers if config.num_local_experts > 0 else 0


def gemma(config: Any) -> int:
    """Every layer, or none: the family has dense models as well."""
    return config.num_hidden_layers if config.enable_moe_block else 0


def jamba(config: Any) -> int:
    """Layers with more than one expert."""
    return sum(count > 1 for count in config.layers_num_experts)


def llama(config: Any) -> int:
    """As `moe_layers` names them."""
    return len(config.moe_layers)


def deepseek(config: Any) -> int:
    """As the configuration of the native DeepSeek-MoE says of each layer."""
    return sum(config.is_moe_layer(layer) for layer in range(config.num_hidden_layers))


def longcat(config: Any) -> int:
    """A decoder layer has one MoE block, and counts as two layers."""
    return config.num_layers


def ernie(config: Any) -> int:
    """Every `moe_layer_interval`-th layer from the first to the last MoE layer."""
    first, last, step = config.moe_layer_start_index, config.moe_layer_end_index, config.moe_layer_interval
    last = config.num_hidden_layers - 1 if last == -1 else last
    return sum(
        (layer + 1) % step == 0 and first <= layer <= last for layer in range(config.num_hidden_layers)
    )


def dbrx(config: Any) -> int:
    """All decoder layers, under DBRX's own name."""
    return config.n_layers
