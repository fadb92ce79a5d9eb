"""What is kept between calls, within a bound on memory."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import psutil
import torch

KEPT_SHARE = 0.25
"""Share of the free memory that questions and prompts may each take: half is left to passes and other processes."""


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=_Sized)


class Store(Generic[T]):
    """Things kept under a key as long as they fit into a number of bytes; what does not fit is not kept."""

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
    """An empty store, bounded by the memory that is free now where the model is."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_memory()
    return Store(int(KEPT_SHARE * free))


def _free_memory(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes free on this machine, or in the container (its control group) where that is less."""
    free = psutil.virtual_memory().available
    limit, used = group / "memory.max", group / "memory.current"
    if limit.exists() and used.exists() and (most := limit.read_text().strip()) != "max":
        free = min(free, int(most) - int(used.read_text()))
    return max(free, 0)
