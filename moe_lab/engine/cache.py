"""A key-value cache with room to write into, whose last entries can be dropped at no cost.

transformers' `DynamicCache` concatenates: every step copies the whole past. Here each layer owns a buffer, a step
writes behind the past, and `keep` moves the end mark back, so that the rows of an ensemble leave nothing behind.

B = sequences, H = key-value heads, T = cached tokens, D = head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class RowLayer(CacheLayerMixin):
    """Keys and values of one layer, each [B, H, capacity, D], of which the first `length` columns are in use."""

    is_sliding = False
    is_croppable = True
    # transformers' masks and prefetching read these two
    is_compileable = False

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = self._buffer(key_states)
        self.values = self._buffer(value_states)
        self.is_initialized = True

    def _buffer(self, like: Tensor) -> Tensor:
        batch, heads, _, head_dim = like.shape
        return like.new_empty(batch, heads, self.capacity, head_dim)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append [B, H, S, D]; returns views of all T + S columns."""
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
        self.capacity = max(needed, self.capacity + self.capacity // 2)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = self._buffer(old)
            new[:, :, : self.length] = old[:, :, : self.length]
            setattr(self, name, new)

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0


class RowCache(Cache):
    """One `RowLayer` per decoder layer.

    Args:
        num_layers: decoder layers.
        capacity: columns to make room for at once; more is made when needed.
    """

    def __init__(self, num_layers: int, capacity: int = 0):
        super().__init__(layers=[RowLayer(capacity) for _ in range(num_layers)])

    @property
    def length(self) -> int:
        """Columns in use."""
        return self.layers[0].length

    def keep(self, length: int) -> None:
        """Forget all columns from `length` on, in every layer."""
        for layer in self.layers:
            layer.length = min(layer.length, length)

    def expanded(self, batch: int, capacity: int) -> RowCache:
        """The same past for each of `batch` sequences, as a copy with room for `capacity` columns."""
        return self._copied(torch.zeros(batch, dtype=torch.long), capacity)

    def select(self, index_B: Tensor) -> RowCache:
        """The sequences `index_B`, in this order."""
        return self._copied(index_B, self.layers[0].capacity)

    def _copied(self, index_B: Tensor, capacity: int) -> RowCache:
        copy = RowCache(len(self.layers), capacity)
        for old, new in zip(self.layers, copy.layers, strict=True):
            if old.length:
                index = index_B.to(old.keys.device)
                new.update(old.keys[index, :, : old.length], old.values[index, :, : old.length])
        return copy

    @classmethod
    def right_aligned(cls, parts: list[RowCache], capacity: int) -> RowCache:
        """Caches of different lengths as one batch: every past ends at the same column; what lies before is unused."""
        width = max(part.length for part in parts)
        sizes = [part.layers[0].keys.shape[0] for part in parts]
        joined = cls(len(parts[0].layers), max(capacity, width))
        for layer, joined_layer in enumerate(joined.layers):
            for name in ("keys", "values"):
                first = getattr(parts[0].layers[layer], name)
                buffer = first.new_zeros(sum(sizes), first.shape[1], joined_layer.capacity, first.shape[3])
                start = 0
                for part, size in zip(parts, sizes, strict=True):
                    source = getattr(part.layers[layer], name)[:, :, : part.length]
                    buffer[start : start + size, :, width - part.length : width] = source
                    start += size
                setattr(joined_layer, name, buffer)
            joined_layer.dtype, joined_layer.device = joined_layer.keys.dtype, joined_layer.keys.device
            joined_layer.length, joined_layer.is_initialized = width, True
        return joined
