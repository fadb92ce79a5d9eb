"""A check whether a model can take virtual tokens, on a copy without weights.

H = key-value heads, D = head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from moe_lab.engine.forward.kv_cache import KVCache, KVLayer
from moe_lab.engine.forward.layers import decoder_layers, runs_on_kv_cache
from moe_lab.methods.virtual_tokens.adapters import with_adapter

Shape = tuple[int, int]
"""(H, D)"""


def refusal(config: Any, kind: str) -> str | None:
    """The reason why a model with this configuration cannot take virtual tokens; None where it can."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    if not runs_on_kv_cache(model):
        return "it keeps more than keys and values of what it read, or does not address them by a mask"
    try:
        with with_adapter(model, kind, 1, seed=0) as wrapped:
            prompt = wrapped.get_prompt(1)
        return None if kind == "soft-prompt" else _unlike(prompt, _remembered(model))
    except ValueError as error:
        return f"peft cannot tell its sizes ({error})"
    except NotImplementedError:
        return "the sizes of its keys and values cannot be told without its weights"


def _unlike(prefix: Any, remembered: list[tuple[Shape, Shape]]) -> str | None:
    """The first layer whose keys and values are not those of peft's prefix."""
    for number, (keys, values) in enumerate(remembered):
        _, heads, _, size = prefix.layers[number].keys.shape
        if not keys == values == (heads, size):
            return (
                f"layer {number} remembers keys of {keys[0]} heads of size {keys[1]} and values of {values[0]} of "
                f"size {values[1]}, and peft's prefix has {heads} of size {size}"
            )
    return None


def _remembered(model: Any) -> list[tuple[Shape, Shape]]:
    """Of each layer's own keys and values: the layer is run up to where it remembers them, the others are left out."""
    found = []
    layers = decoder_layers(model)
    for layer in layers:
        for other in layers:
            if other is not layer:
                other.forward = _unchanged
        try:
            model(torch.zeros(1, 1, dtype=torch.long, device="meta"), past_key_values=_Watch(len(layers)))
        except _Remembered as shapes:
            found.append(shapes.args)
        finally:
            for other in layers:
                other.__dict__.pop("forward", None)
    return found


def _unchanged(hidden_states: Tensor, *args: object, **kwargs: object) -> Tensor:
    return hidden_states


class _Remembered(Exception):
    """Raised with the shapes of the keys and the values, once they are known."""


class _Watch(KVCache):
    def __init__(self, num_layers: int):
        super().__init__(num_layers)
        self.layers = [_WatchedLayer(0) for _ in range(num_layers)]


class _WatchedLayer(KVLayer):
    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object) -> Any:
        raise _Remembered(*((part.shape[1], part.shape[3]) for part in (key_states, value_states)))
