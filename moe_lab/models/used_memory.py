"""The memory that a process uses, now and at its peak, and the size of a model."""

from __future__ import annotations

import ctypes
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any


def reset_peak_memory(device: Any) -> None:
    """Start a new measurement of the peak: of the device's memory, or of this process where the system can.

    Memory that was freed is given back first. Cyclic garbage is not looked for, which takes a third of a second:
    `ModelPool` does that where a model leaves memory.
    """
    if getattr(device, "type", None) == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return
    _trim()
    with suppress(OSError):  # not Linux, or not allowed: the peak is then that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes(device: Any) -> int:
    """Peak memory in bytes: allocated on a CUDA device, resident of this process elsewhere."""
    if getattr(device, "type", None) == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    if (known := _from_status("VmHWM")) is not None:
        return known
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_bytes(device: Any) -> int:
    """Memory in use now, in bytes: allocated on a CUDA device, resident of this process elsewhere."""
    if getattr(device, "type", None) == "cuda":
        import torch

        return int(torch.cuda.memory_allocated(device))
    return _from_status("VmRSS") or peak_memory_bytes(device)


def _from_status(name: str) -> int | None:
    """A quantity of this process in bytes; None on systems other than Linux."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else []:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _trim() -> None:
    """What earlier runs of this process freed is still resident, and a new peak would hide in it."""
    with suppress(OSError, AttributeError):  # a system without glibc
        ctypes.CDLL(None).malloc_trim(0)


def weight_bytes(model: Any) -> int:
    """Size of a model's parameters and buffers."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
