"""A store of activations between calls, within a bound on memory."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

import torch

from moe_lab.models.memory import free_memory

KEPT_SHARE = 0.25
"""Share of the free memory for each of two stores, scored requests and prompts. Half is left to passes and other
processes."""


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=_Sized)


class Store(Generic[T]):
    """Keeps values by key as long as they fit into a number of bytes. Values that do not fit are not kept."""

    def __init__(self, limit: int):
        self.limit = limit
        self.nbytes = 0
        self._kept: dict[Hashable, T] = {}

    def add(self, key: Hashable, value: T) -> None:
        if key not in self._kept and self.nbytes + value.nbytes <= self.limit:
            self._kept[key] = value
            self.nbytes += value.nbytes

    def get(self, key: Hashable) -> T | None:
        return self._kept.get(key)


def store_on(device: torch.device) -> Store:
    """An empty store, bounded by the memory that is free on the model's device now."""
    return Store(int(KEPT_SHARE * free_memory(device)))
