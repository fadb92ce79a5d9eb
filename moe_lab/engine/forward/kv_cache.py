"""A KV cache with preallocated buffers, whose last slots can be dropped at no cost.

transformers' `DynamicCache` concatenates, so that every step copies the whole cache. Here each
layer owns a buffer: a step writes after the slots in use, and `keep` drops the slots of routing
samples by moving the end back. `Store` keeps activations between calls, within a bound on memory.

B = sequences, H = key-value heads, T = cached slots, D = head size.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from moe_lab.models.memory import free_memory


class KVLayer(CacheLayerMixin):
    """Keys and values of one layer, each [B, H, capacity, D], of which the first `length` slots are
    in use."""

    is_sliding = False
    is_croppable = True
    # transformers' masks and prefetching read these two
    is_compileable = False

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity
        self.length = 0
        self.slots: dict[int, Tensor] | None = None
        """Of a fixed cache (`KVCache.fix`): int64 [S], where S new tokens go, by S."""
        self.fixed = 0
        """Slots that attention gets of a fixed cache."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers, for a batch, heads and dtype like these."""
        self.dtype = key_states.dtype
        self.device = key_states.device
        self.keys = self._buffer(key_states)
        self.values = self._buffer(value_states)
        self.is_initialized = True

    def _buffer(self, like: Tensor) -> Tensor:
        """An empty buffer [B, H, capacity, D] with the shape and dtype of this tensor [B, H, S,
        D]."""
        batch, heads, _, head_dim = like.shape
        return like.new_empty(batch, heads, self.capacity, head_dim)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append [B, H, S, D]. Returns views of all T + S slots; of a fixed cache always as many
        slots."""
        if self.slots is not None:
            at_S = self.slots[key_states.shape[-2]]
            self.keys.index_copy_(2, at_S, key_states)
            self.values.index_copy_(2, at_S, value_states)
            return self.keys[:, :, : self.fixed], self.values[:, :, : self.fixed]
        end = self.length + key_states.shape[-2]
        if not self.is_initialized:
            self.capacity = max(self.capacity, end)
            self.lazy_initialization(key_states, value_states)
        elif end > self.capacity:
            self._grow(end)
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grow(self, needed: int) -> None:
        """Enlarge the buffers, by half at least, to hold the needed number of slots."""
        self.capacity = max(needed, self.capacity + self.capacity // 2)
        self.keys = self._grown(self.keys)
        self.values = self._grown(self.values)

    def _grown(self, old: Tensor) -> Tensor:
        """A buffer of the new capacity with the slots in use of an old one."""
        new = self._buffer(old)
        new[:, :, : self.length] = old[:, :, : self.length]
        return new

    def join(self, parts: list[KVLayer], width: int) -> None:
        """Take over `parts` as one batch, each ending at slot `width`. An empty part is one
        sequence without tokens."""
        filled = next((part for part in parts if part.is_initialized), None)
        if filled is None:
            return
        sizes = [part.keys.shape[0] if part.is_initialized else 1 for part in parts]
        # the buffers get the shape and dtype of these; their content is not read
        batch = (sum(sizes), -1, -1, -1)
        self.lazy_initialization(filled.keys[:1].expand(batch), filled.values[:1].expand(batch))
        self.keys[:, :, :width] = 0
        self.values[:, :, :width] = 0
        start = 0
        for part, size in zip(parts, sizes, strict=True):
            if part.is_initialized:
                sequences = slice(start, start + size)
                slots = slice(width - part.length, width)
                self.keys[sequences, :, slots] = part.keys[:, :, : part.length]
                self.values[sequences, :, slots] = part.values[:, :, : part.length]
            start += size
        self.length = width

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0


class JoinedKVLayer(KVLayer):
    """One layer of several caches, joined again for each use, so that only one layer's copy exists
    at a time."""

    def __init__(self, parts: list[KVLayer], width: int):
        super().__init__(0)
        self.parts = parts
        self.width = width

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """The keys and values of all parts, and the new ones after them. The new ones are not
        cached.

        This differs from `KVLayer.update`, which caches them.
        """
        layer = KVLayer(self.width + key_states.shape[-2])
        layer.join(self.parts, self.width)
        return layer.update(key_states, value_states)


class KVCache(Cache):
    """One `KVLayer` per decoder layer.

    Args:
        num_layers: decoder layers.
        capacity: slots to allocate at once. Layers grow as needed.
    """

    def __init__(self, num_layers: int, capacity: int = 0):
        super().__init__(layers=[KVLayer(capacity) for _ in range(num_layers)])

    @property
    def length(self) -> int:
        """Slots in use, in the last layer: a cache of the later layers alone has none in the first
        ones."""
        return self.layers[-1].length

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        nbytes = 0
        for layer in self.layers:
            if layer.is_initialized:
                nbytes += layer.keys.nbytes + layer.values.nbytes
        return nbytes

    def keep(self, length: int) -> None:
        """Drop all slots from `length` on, in every layer."""
        for layer in self.layers:
            layer.length = min(layer.length, length)

    @torch.inference_mode()
    def fix(self, length: int, count: int, slots: dict[int, Tensor]) -> None:
        """From now on new tokens go to slots that tensors give, and attention gets `count` slots:
        no shape changes.

        Slots from `length` on are zero, since a masked NaN would still spread through attention.

        Args:
            slots: int64 [S] for each number S of new tokens.
        """
        for layer in self.layers:
            layer.length = length
            layer.fixed = count
            layer.slots = slots
            layer.keys[:, :, length:count] = 0
            layer.values[:, :, length:count] = 0

    def expanded(self, batch: int, capacity: int) -> KVCache:
        """A copy of this cache for each of `batch` sequences, with room for `capacity` slots."""
        first_B = torch.zeros(batch, dtype=torch.long)
        copy = KVCache(len(self.layers), capacity)
        for old, new in zip(self.layers, copy.layers, strict=True):
            if old.length:
                index = _entries(old, first_B, 1)
                new.update(old.keys[index, :, : old.length], old.values[index, :, : old.length])
        return copy

    def select(self, index_B: Tensor, size: int) -> None:
        """Keep the sequences `index_B` of `size` ones, in this order, with all samples where the
        cache is forked.

        Layer by layer: only one layer is in memory twice.
        """
        for layer in self.layers:
            if layer.length:
                index = _entries(layer, index_B, size)
                layer.keys = layer.keys[index]
                layer.values = layer.values[index]

    def fork(self, n: int, size: int, first_layer: int) -> None:
        """Repeat each of `size` sequences n times from `first_layer` on, unless that is done
        already."""
        for layer in self.layers[first_layer:]:
            if layer.is_initialized and layer.keys.shape[0] == size:
                layer.keys = layer.keys.repeat_interleave(n, dim=0)
                layer.values = layer.values.repeat_interleave(n, dim=0)

    def taken(self, sequence: int, length: int, first_layer: int = 0) -> KVCache:
        """A copy of the first `length` slots of one sequence, without the layers before
        `first_layer`."""
        copy = KVCache(len(self.layers), length)
        only = slice(sequence, sequence + 1)
        for number in range(first_layer, len(self.layers)):
            layer = self.layers[number]
            copy.layers[number].update(layer.keys[only, :, :length], layer.values[only, :, :length])
        return copy

    @classmethod
    def right_aligned(cls, parts: list[KVCache], capacity: int, keep: bool = True) -> KVCache:
        """Caches of different lengths as one batch. All end at the same slot, so that all write
        their next token to the same place. Unused slots before them are zero, since a masked NaN
        would still spread through attention.

        Layers that are empty in all parts stay empty. Without `keep` the parts are emptied layer by
        layer, so that only one layer is in memory twice.
        """
        width = max(part.length for part in parts)
        joined = cls(len(parts[0].layers), max(capacity, width))
        for i, layer in enumerate(joined.layers):
            layer.join([part.layers[i] for part in parts], width)
            if not keep:
                for part in parts:
                    part.layers[i] = KVLayer(0)
        return joined


def _entries(layer: KVLayer, index_B: Tensor, size: int) -> Tensor:
    """The batch entries of the sequences `index_B` of `size` ones."""
    entries = torch.arange(layer.keys.shape[0], device=layer.keys.device).view(size, -1)
    return entries[index_B.to(layer.keys.device)].reshape(-1)


KEPT_SHARE = 0.25
"""Share of the free memory for each of two stores, scored requests and prompts. Half remains for
passes and other processes."""


class Store:
    """Keeps values by key while their `nbytes` fit into a number of bytes in all. A value that does
    not is not kept."""

    def __init__(self, limit: int):
        self.limit = limit
        self.nbytes = 0
        self._kept: dict[Hashable, Any] = {}

    def add(self, key: Hashable, value: Any) -> None:
        """Keep a value, if there is room and the key has none yet."""
        if key not in self._kept and self.nbytes + value.nbytes <= self.limit:
            self._kept[key] = value
            self.nbytes += value.nbytes

    def get(self, key: Hashable) -> Any:
        """The value of a key; None without one."""
        return self._kept.get(key)


def store_on(device: torch.device) -> Store:
    """An empty store, bounded by the memory that is free on the model's device now."""
    return Store(int(KEPT_SHARE * free_memory(device)))


def token_bytes(model: Any) -> int:
    """Estimated bytes of a token's keys and values in all layers, by the model's configuration.

    It is exact where all layers have the same heads and keep all that they compute.
    """
    config = model.config.get_text_config()
    numbers = 0
    for index in range(config.num_hidden_layers):
        layer = config.per_layer_config[index]
        # latent attention: the latent vector, the key of the positions
        if getattr(layer, "kv_lora_rank", None):
            numbers += layer.kv_lora_rank + layer.qk_rope_head_dim
            continue
        heads = layer.num_attention_heads
        key_value_heads = getattr(layer, "num_key_value_heads", None) or heads
        head_dim = getattr(layer, "head_dim", None) or layer.hidden_size // heads
        numbers += 2 * key_value_heads * head_dim
    return numbers * model.dtype.itemsize
