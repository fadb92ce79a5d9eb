"""A trained adapter as a prefix for the engine: keys and values of positions 0 to V - 1, before every prompt.

A prefix is such keys and values. A soft prompt is a sequence of input embeddings: in a causal model its keys and values
depend on nothing behind it, so that they are computed once.

V = virtual tokens, L = decoder layers, H = key-value heads, D = head size, X = hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.engine.forward.layers import decoder_layers


def soft_prompt_past(model: Any, prompt_VX: Tensor) -> KVCache:
    """The keys and values of V input embeddings."""
    embeddings_1VX = prompt_VX[None].to(model.device, model.dtype)
    past = KVCache(len(decoder_layers(model)), len(prompt_VX))
    with torch.inference_mode():
        model(inputs_embeds=embeddings_1VX, past_key_values=past, use_cache=True)
    return past


def prefix_past(model: Any, prefix: Tensor, heads: int) -> KVCache:
    """A prefix [V, 2 L H D], as peft lays it out (keys, values, layer by layer), on the layers' devices."""
    layers = decoder_layers(model)
    parts_2LHVD = prefix.to(model.dtype).view(len(prefix), 2 * len(layers), heads, -1).permute(1, 2, 0, 3)
    past = KVCache(len(layers), len(prefix))
    for i, layer in enumerate(layers):
        keys_1HVD, values_1HVD = parts_2LHVD[2 * i : 2 * i + 2, None].to(next(layer.parameters()).device)
        past.layers[i].update(keys_1HVD, values_1HVD)
    return past
