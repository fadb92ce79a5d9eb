"""What a run takes: time, tokens, peak memory, energy."""

from __future__ import annotations

import resource
import sys
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moe_lab.engine.lm import EngineLM


class Meter:
    """Time, energy and the engine's counters since the last reading."""

    def __init__(self, model: EngineLM):
        self._model = model
        self._counts = dict(model.cost)
        self._since = time.perf_counter()
        self._energy = energy_joules(model.device)

    def spent(self) -> dict[str, float]:
        """What was spent since the last call, and the peak memory so far (bytes); zeros are left out."""
        now, counts = time.perf_counter(), dict(self._model.cost)
        spent: dict[str, float] = {name: count - self._counts.get(name, 0) for name, count in counts.items()}
        spent["wall_seconds"] = now - self._since
        spent["peak_memory_bytes"] = peak_memory_bytes(self._model.device)
        energy = energy_joules(self._model.device)
        if energy is not None and self._energy is not None:
            spent["energy_joules"] = energy - self._energy
        self._counts, self._since, self._energy = counts, now, energy
        return {name: amount for name, amount in spent.items() if amount}


def reset_peak_memory(device: Any) -> None:
    """Start a new measurement of the peak: of the device's memory, or of this process where the system can."""
    if getattr(device, "type", None) == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # not Linux, or not allowed: the peak is then that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes(device: Any) -> int:
    """Peak memory in bytes: allocated on a CUDA device, resident of this process elsewhere."""
    if getattr(device, "type", None) == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else []:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def energy_joules(device: Any) -> float | None:
    """Energy that a CUDA device has drawn since its driver was loaded, in joules.

    None elsewhere, without the package nvidia-ml-py, and where the device does not tell.
    """
    handle = _nvml_handle(str(device)) if getattr(device, "type", None) == "cuda" else None
    if handle is None:
        return None
    import pynvml

    return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000


@lru_cache(maxsize=8)
def _nvml_handle(device: str) -> Any:
    import torch

    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError:
        return None
    return handle
