"""Memory: free, of weights, and used; and the pool that keeps the last model in memory."""

from __future__ import annotations

import ctypes
import resource
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from moe_lab.config.schema import Config
    from moe_lab.models.facts import LoadedModel


def own_memory(device: torch.device | None) -> Any:
    """The module of torch that counts a device's own memory, e.g. `torch.cuda`.

    None for a device that uses the host's memory, and without a device.
    """
    if device is None or device.type in ("cpu", "mps"):
        return None
    import torch

    return torch.get_device_module(device)


def free_memory(device: torch.device) -> int:
    """Free bytes of a device."""
    module = own_memory(device)
    if module is None:
        return free_host_memory()
    free = module.mem_get_info(device)[0]
    # torch's allocator keeps what was freed, and gives it out again
    if hasattr(module, "memory_reserved"):
        free += module.memory_reserved(device) - module.memory_allocated(device)
    return free


def free_host_memory(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Free bytes of this machine, or of the container (its control group) if that is less."""
    import psutil

    free = psutil.virtual_memory().available
    limit_file = group / "memory.max"
    used_file = group / "memory.current"
    if limit_file.exists() and used_file.exists():
        limit = limit_file.read_text().strip()
        if limit != "max":  # no limit
            free = min(free, int(limit) - int(used_file.read_text()))
    return max(free, 0)


def reset_peak_memory(device: torch.device | None) -> None:
    """Start a new measurement of the peak: of the device's memory, or of this process where the
    system can.

    Memory that was freed is given back first. Cyclic garbage is not looked for, which takes a third
    of a second: `ModelPool` does that where a model leaves memory.
    """
    module = own_memory(device)
    if module is not None:
        module.reset_peak_memory_stats(device)
        return
    # memory that was freed and stays resident would count for the new peak; only glibc gives it
    # back
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # not Linux, or not allowed: the peak is then that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes(device: torch.device | None) -> int:
    """Peak memory in bytes: allocated on a device with its own memory, resident of this process
    elsewhere."""
    module = own_memory(device)
    if module is not None:
        return int(module.max_memory_allocated(device))
    status = Path("/proc/self/status")
    if status.exists():
        value_of = dict(line.split(":", 1) for line in status.read_text().splitlines())
        kibibytes = value_of["VmHWM"].split()[0]
        return int(kibibytes) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_bytes(device: torch.device | None) -> int:
    """Memory in use now, in bytes: allocated on a device with its own memory, resident of this
    process elsewhere."""
    module = own_memory(device)
    if module is not None:
        return int(module.memory_allocated(device))
    import psutil

    return int(psutil.Process().memory_info().rss)


def weight_bytes(model: Any) -> int:
    """Size of a model's parameters and buffers."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class ModelPool:
    """Keeps the last loaded model, so that runs of one model load it once. Another model replaces
    it."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._loaded: LoadedModel | None = None

    def get(self, config: Config) -> LoadedModel:
        """The model of a run, loaded unless it is in memory. Raises ModelError."""
        from moe_lab.models.load import load_model

        key = (repr(asdict(config.model)), config.dtype, config.device)
        if self._loaded is None or key != self._key:
            if self._loaded is not None:
                self.free()
            self._loaded = load_model(
                config.model, dtype=config.dtype, device=config.device, offline=config.offline
            )
            self._key = key
        return self._loaded

    def free(self) -> None:
        """Remove the model from memory, and all other objects that only reference cycles hold."""
        import gc

        device = None if self._loaded is None else self._loaded.device
        self._loaded = None
        self._key = None
        gc.collect()
        module = own_memory(device)
        if module is not None:
            module.empty_cache()
