"""A key-value cache with room to write into, whose last entries can be dropped at no cost.

transformers' `DynamicCache` concatenates: every step copies the whole past. Here each layer owns a buffer, a step
writes behind the past, and `keep` moves the end mark back, so that the rows of an ensemble leave nothing behind.

B = sequences, H = key-value heads, T = cached tokens, D = head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class KVLayer(CacheLayerMixin):
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

    def join(self, parts: list[KVLayer], width: int) -> None:
        """Become `parts` as one batch, each ending at column `width`; an unused part is one sequence without a past."""
        sizes = [part.keys.shape[0] if part.is_initialized else 1 for part in parts]
        filled = next((part for part in parts if part.is_initialized), None)
        if filled is None:
            return
        batch = (sum(sizes), -1, -1, -1)
        self.lazy_initialization(filled.keys[:1].expand(batch), filled.values[:1].expand(batch))
        for own in (self.keys, self.values):
            own[:, :, :width] = 0
        start = 0
        for part, size in zip(parts, sizes, strict=True):
            rows, columns = slice(start, start + size), slice(width - part.length, width)
            if part.is_initialized:
                self.keys[rows, :, columns] = part.keys[:, :, : part.length]
                self.values[rows, :, columns] = part.values[:, :, : part.length]
            start += size
        self.length = width

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0


class JoinedKVLayer(KVLayer):
    """One layer of several caches, joined anew for each use, so that one layer's copy is alive at a time."""

    def __init__(self, parts: list[KVLayer], width: int):
        super().__init__(0)
        self.parts, self.width = parts, width

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """The cached slots with [B, H, R, D] behind them, which are not kept."""
        layer = KVLayer(self.width + key_states.shape[-2])
        layer.join(self.parts, self.width)
        return layer.update(key_states, value_states)


class KVCache(Cache):
    """One `KVLayer` per decoder layer.

    Args:
        num_layers: decoder layers.
        capacity: columns to make room for at once; more is made when needed.
    """

    def __init__(self, num_layers: int, capacity: int = 0):
        super().__init__(layers=[KVLayer(capacity) for _ in range(num_layers)])

    @property
    def length(self) -> int:
        """Columns in use (of the last layer: a past for later layers alone has none in the first ones)."""
        return self.layers[-1].length

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers if layer.is_initialized)

    def keep(self, length: int) -> None:
        """Forget all columns from `length` on, in every layer."""
        for layer in self.layers:
            layer.length = min(layer.length, length)

    def expanded(self, batch: int, capacity: int) -> KVCache:
        """The same past for each of `batch` sequences, as a copy with room for `capacity` columns."""
        return self._copied(torch.zeros(batch, dtype=torch.long), capacity, 1)

    def select(self, index_B: Tensor, size: int) -> KVCache:
        """The sequences `index_B` of `size` ones, in this order; where these are parted, with all their rows."""
        return self._copied(index_B, self.layers[-1].capacity, size)

    def part(self, n: int, size: int, first_layer: int) -> None:
        """Give each of `size` sequences n entries from `first_layer` on, where that is not done already."""
        for layer in self.layers[first_layer:]:
            if layer.is_initialized and layer.keys.shape[0] == size:
                layer.keys = layer.keys.repeat_interleave(n, dim=0)
                layer.values = layer.values.repeat_interleave(n, dim=0)

    def taken(self, sequence: int, length: int, first_layer: int = 0) -> KVCache:
        """A copy of the first `length` columns of one sequence, without the layers before `first_layer`."""
        copy = KVCache(len(self.layers), length)
        for old, new in list(zip(self.layers, copy.layers, strict=True))[first_layer:]:
            one = slice(sequence, sequence + 1)
            new.update(old.keys[one, :, :length], old.values[one, :, :length])
        return copy

    def _copied(self, index_B: Tensor, capacity: int, size: int) -> KVCache:
        copy = KVCache(len(self.layers), capacity)
        for old, new in zip(self.layers, copy.layers, strict=True):
            if old.length:
                rows = torch.arange(old.keys.shape[0], device=old.keys.device).view(size, -1)
                index = rows[index_B.to(old.keys.device)].reshape(-1)
                new.update(old.keys[index, :, : old.length], old.values[index, :, : old.length])
        return copy

    @classmethod
    def right_aligned(cls, parts: list[KVCache], capacity: int) -> KVCache:
        """Caches of different lengths as one batch: every past ends at the same column; what lies before is zero.

        Layers that are empty in all parts stay empty.
        """
        width = max(part.length for part in parts)
        joined = cls(len(parts[0].layers), max(capacity, width))
        for i, layer in enumerate(joined.layers):
            layer.join([part.layers[i] for part in parts], width)
        return joined
