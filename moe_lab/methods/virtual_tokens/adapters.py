"""peft's adapters for soft prompts and prefixes, and their keys and values for the engine's cache.

The engine puts keys and values of V virtual tokens at positions 0 to V - 1, before every prompt. A prefix is such keys
and values. A soft prompt is V input embeddings; in a causal model their keys and values do not depend on later tokens,
so they are computed once.

V = virtual tokens, L = decoder layers, H = key-value heads, D = head size, X = hidden size.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moe_lab.engine.forward.kv_cache import KVCache, KVLayer
from moe_lab.engine.forward.layers import decoder_layers, runs_on_kv_cache

Shape = tuple[int, int]
"""(H, D)"""


def soft_prompt_past(model: Any, prompt_VX: Tensor) -> KVCache:
    """The keys and values of V input embeddings."""
    embeddings_1VX = prompt_VX[None].to(model.device, model.dtype)
    past = KVCache(len(decoder_layers(model)), len(prompt_VX))
    with torch.inference_mode():
        model(inputs_embeds=embeddings_1VX, past_key_values=past, use_cache=True)
    return past


def prefix_past(model: Any, prefix: Tensor, heads: int) -> KVCache:
    """The keys and values of a prefix [V, 2 L H D] in peft's layout (keys, values, layer by layer)."""
    layers = decoder_layers(model)
    parts_2LHVD = prefix.to(model.dtype).view(len(prefix), 2 * len(layers), heads, -1).permute(1, 2, 0, 3)
    past = KVCache(len(layers), len(prefix))
    for i, layer in enumerate(layers):
        keys_1HVD, values_1HVD = parts_2LHVD[2 * i : 2 * i + 2, None].to(next(layer.parameters()).device)
        past.layers[i].update(keys_1HVD, values_1HVD)
    return past


def peft_config(kind: str, virtual_tokens: int) -> Any:
    """peft's settings. A soft prompt starts with embeddings of random tokens, a prefix with standard normal numbers."""
    from peft import PrefixTuningConfig, PromptTuningConfig, PromptTuningInit, TaskType

    if kind == "soft-prompt":
        return PromptTuningConfig(
            task_type=TaskType.CAUSAL_LM,
            num_virtual_tokens=virtual_tokens,
            prompt_tuning_init=PromptTuningInit.SAMPLE_VOCAB,
        )
    return PrefixTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=virtual_tokens)


@contextmanager
def with_adapter(model: Any, kind: str, virtual_tokens: int, seed: int) -> Iterator[Any]:
    """A PeftModel of the frozen model with an adapter drawn from the seed. On exit the model is restored."""
    from peft import get_peft_model

    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft calls deprecated functions of transformers
            torch.manual_seed(seed)
            wrapped = get_peft_model(model, peft_config(kind, virtual_tokens))
        yield wrapped
    finally:
        for parameter, flag in flags:
            parameter.requires_grad = flag


def stored_past(folder: Path, model: Any) -> KVCache:
    """The keys and values of an adapter in peft's format (`adapter_model.safetensors`, `adapter_config.json`)."""
    from peft import PeftConfig, PeftType
    from safetensors.torch import load_file

    config: Any = PeftConfig.from_pretrained(str(folder))
    virtual = load_file(folder / "adapter_model.safetensors")["prompt_embeddings"]
    if config.peft_type == PeftType.PREFIX_TUNING:
        return prefix_past(model, virtual, config.num_attention_heads)
    return soft_prompt_past(model, virtual)


def refusal(config: Any, kind: str) -> str | None:
    """The reason why a model with this configuration cannot have virtual tokens, or None. Needs no weights."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    if not runs_on_kv_cache(model):
        return "its cache has more than keys and values, or its attention does not take a mask"
    try:
        with with_adapter(model, kind, 1, seed=0) as wrapped:
            prompt = wrapped.get_prompt(1)
        return None if kind == "soft-prompt" else _misfit(prompt, cached_shapes(model))
    except ValueError as error:
        return f"peft does not know its sizes ({error})"
    except NotImplementedError:
        return "the sizes of its keys and values are unknown without its weights"


def _misfit(prefix: Any, shapes: list[tuple[Shape, Shape]]) -> str | None:
    """A description of the first layer whose keys or values differ in size from peft's prefix; None if all fit."""
    for number, (keys, values) in enumerate(shapes):
        _, heads, _, size = prefix.layers[number].keys.shape
        if not keys == values == (heads, size):
            return (
                f"layer {number} caches keys of {keys[0]} heads of size {keys[1]} and values of {values[0]} of size "
                f"{values[1]}, and peft's prefix has {heads} of size {size}"
            )
    return None


def cached_shapes(model: Any) -> list[tuple[Shape, Shape]]:
    """The shapes of the keys and the values that each layer caches.

    For each layer, all others are replaced by the identity, and the model runs on the meta device until this layer
    updates the cache, which raises the shapes. No public attribute has them for all architectures.
    """
    shapes = []
    layers = decoder_layers(model)
    for layer in layers:
        for other in layers:
            if other is not layer:
                other.forward = _unchanged
        try:
            model(
                torch.zeros(1, 1, dtype=torch.long, device="meta"), past_key_values=_RaisingCache(len(layers))
            )
        except _CacheUpdate as update:
            shapes.append(update.args)
        finally:
            for other in layers:
                other.__dict__.pop("forward", None)
    return shapes


def _unchanged(hidden_states: Tensor, *args: object, **kwargs: object) -> Tensor:
    return hidden_states


class _CacheUpdate(Exception):
    """Raised with the shapes of the keys and the values."""


class _RaisingCache(KVCache):
    def __init__(self, num_layers: int):
        super().__init__(num_layers)
        self.layers = [_RaisingLayer(0) for _ in range(num_layers)]


class _RaisingLayer(KVLayer):
    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object) -> Any:
        raise _CacheUpdate(*((part.shape[1], part.shape[3]) for part in (key_states, value_states)))
