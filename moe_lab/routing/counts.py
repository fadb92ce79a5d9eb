"""Numbers of MoE layers, from a model's configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CountLayers = Callable[[Any], int]
"""Model configuration -> number of MoE layers."""


def every_layer(config: Any) -> int:
    """All decoder layers."""
    return config.num_hidden_layers


def sparse_step(config: Any) -> int:
    """Every `decoder_sparse_step`-th layer, except those in `mlp_only_layers`."""
    step, dense = config.decoder_sparse_step, config.mlp_only_layers
    layers = range(config.num_hidden_layers)
    return sum(config.num_experts > 0 and layer not in dense and (layer + 1) % step == 0 for layer in layers)


def listed(config: Any) -> int:
    """Layers marked "sparse" in `mlp_layer_types`."""
    return list(config.mlp_layer_types).count("sparse")


def after(attribute: str) -> CountLayers:
    """All layers but the first ones, whose number is this attribute."""
    return lambda config: max(0, config.num_hidden_layers - getattr(config, attribute))


def moe_blocks(config: Any) -> int:
    """Layers marked "moe" in `layers_block_type`, for models whose mixers and MoE blocks are separate layers."""
    return list(config.layers_block_type).count("moe")


def granite_hybrid(config: Any) -> int:
    """Every layer, or none for a dense model of the family."""
    return config.num_hidden_layers if config.num_local_experts > 0 else 0


def gemma(config: Any) -> int:
    """Every layer, or none for a dense model of the family."""
    return config.num_hidden_layers if config.enable_moe_block else 0


def jamba(config: Any) -> int:
    """Layers with more than one expert."""
    return sum(count > 1 for count in config.layers_num_experts)


def llama(config: Any) -> int:
    """Layers listed in `moe_layers`."""
    return len(config.moe_layers)


def deepseek(config: Any) -> int:
    """Layers for which `is_moe_layer` of this package's own configurations is true."""
    return sum(config.is_moe_layer(layer) for layer in range(config.num_hidden_layers))


def longcat(config: Any) -> int:
    """One MoE block per decoder layer, which counts as two layers."""
    return config.num_layers


def ernie(config: Any) -> int:
    """Every `moe_layer_interval`-th layer from the first to the last MoE layer."""
    first, last, step = config.moe_layer_start_index, config.moe_layer_end_index, config.moe_layer_interval
    last = config.num_hidden_layers - 1 if last == -1 else last
    return sum(
        (layer + 1) % step == 0 and first <= layer <= last for layer in range(config.num_hidden_layers)
    )


def dbrx(config: Any) -> int:
    """All decoder layers; DBRX has its own name for their number."""
    return config.n_layers
