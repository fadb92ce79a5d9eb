"""The size of a forward pass, from the free memory and the model's shape, and the memory that a run
needs."""

from collections import Counter
from typing import Any

import torch

from moe_lab.engine.footprint import footprint_of
from moe_lab.engine.forward.kv_cache import token_bytes
from moe_lab.engine.forward.layers import decoder_layers, runs_on_kv_cache
from moe_lab.engine.scoring import Budget
from moe_lab.models.memory import free_memory, weight_bytes

MOST_TOKENS = 16384
"""Tokens of a pass at most: more take memory and are not faster."""
CPU_TOKENS = 2048
"""Tokens of a pass on a CPU, where larger ones are not faster."""
CPU_GRADIENT_TOKENS = 512
"""Tokens of a pass with gradients on a CPU: each takes some megabytes while they are computed."""
PASS_SHARE = 0.2
"""Share of the free memory for a pass. Keys and values, and cached activations, take the rest
(`CACHE_SHARE`, `KEPT_SHARE`)."""
CACHE_SHARE = 0.5
"""Share of the free memory for the keys and values of the sequences of a pass, or of those that
generate together."""
PLANNED_TOKENS = 2048
"""Tokens of a pass on a device that is planned for. Smaller passes are much slower."""
LEAST_TOKENS = 32
"""Passes are not halved below this."""
ROW_COPIES = 2
"""Copies of a row of logits in the model's dtype: samples are joined with the clean one."""
SCORE_BYTES = 12
"""Bytes of each of a row's numbers in the mean of samples, in float32."""
GRADIENT_BYTES = 16
"""Bytes of each of a row's numbers in a loss and its gradient, in float32, in addition to the row
itself."""


def pass_budget(model: Any, sequences: int | None = None) -> Budget:
    """The bounds of this model's passes, with what is free now.

    Args:
        sequences: at most this many in a pass; None: as many as fit.
    """
    device = model.device
    slots = 0  # without a KV cache nothing asks for them
    if runs_on_kv_cache(model):
        slots = int(CACHE_SHARE * cache_memory(model)) // token_bytes(model)
    if device.type == "cpu":
        return Budget(CPU_TOKENS, sequences, slots=slots)
    footprint = footprint_of(model)
    free = int(PASS_SHARE * free_memory(device))
    most = max(LEAST_TOKENS, min(MOST_TOKENS, free // footprint.token))
    return Budget(most, sequences, slots=slots, row=ROW_COPIES * footprint.row / footprint.token)


def bound_gradients(model: Any, budget: Budget) -> None:
    """Set the bounds of a budget's passes with gradients. It takes seconds where they are
    metered."""
    if model.device.type == "cpu":
        budget.gradient_tokens = CPU_GRADIENT_TOKENS
        return
    footprint = footprint_of(model)
    free = int(PASS_SHARE * free_memory(model.device))
    budget.gradient_tokens = max(LEAST_TOKENS, min(MOST_TOKENS, free // footprint.kept))
    vocabulary = footprint.row // model.dtype.itemsize
    budget.gradient_row = (footprint.row + GRADIENT_BYTES * vocabulary) / footprint.kept


def cache_memory(model: Any) -> int:
    """Free bytes for keys and values of all layers.

    Each device of a device map holds those of its own layers: with 3 of 4 layers on a device, its
    free memory is enough for 4/3 of itself. The device with the least decides.
    """
    layers = decoder_layers(model) or [model]
    layers_on: Counter[torch.device] = Counter()
    for layer in layers:
        device = next(layer.parameters()).device
        if device.type in ("meta", "cpu"):
            # layers that accelerate keeps elsewhere compute on the model's own device
            device = model.device
        layers_on[device] += 1
    bytes_by_device = []
    for device, count in layers_on.items():
        bytes_by_device.append(free_memory(device) * len(layers) // count)
    return min(bytes_by_device)


def sequence_bytes(model: Any, slots: float, samples: float) -> int:
    """Bytes of a sequence that generates: its cached slots, and the logits of its samples with
    their float32 scores."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    cache_bytes = token_bytes(model) * slots
    logit_bytes = samples * vocabulary * (model.dtype.itemsize + SCORE_BYTES)
    return int(cache_bytes + logit_bytes)


def planned_memory(model: Any, slots: float, rows: float) -> int:
    """The bytes of a device on which a run has enough memory.

    The device holds the weights. PASS_SHARE of the rest is enough for a pass of `PLANNED_TOKENS`
    tokens, and CACHE_SHARE of the rest for the cached slots and rows of logits.

    Args:
        model: on the meta device.
        slots, rows: the numbers of cached slots and of rows of logits.

    Raises NotImplementedError for a family whose own code reads values of tensors.
    """
    for_passes = PLANNED_TOKENS * footprint_of(model).token / PASS_SHARE
    for_caches = sequence_bytes(model, slots, rows) / CACHE_SHARE
    return weight_bytes(model) + int(max(for_passes, for_caches))
