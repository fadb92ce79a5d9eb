"""What a run takes: time, tokens, peak memory, energy."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from moe_lab.models.used_memory import memory_bytes, peak_memory_bytes

if TYPE_CHECKING:
    from moe_lab.engine.lm import EngineLM
    from moe_lab.results.request_log import ResponseLog


class Meter:
    """Time, energy and the engine's counters since the last reading."""

    def __init__(self, model: EngineLM):
        self._model = model
        self._start = memory_bytes(model.device)
        self._counts = dict(model.cost)
        self._since = time.perf_counter()
        self._energy = energy_joules(model.device)

    def spent(self) -> dict[str, float]:
        """What was spent since the last call, and the peaks so far (bytes); zeros are left out.

        `peak_working_bytes` is the peak less what the model, and elsewhere than on a CUDA device Python and its
        libraries, held before the first answer.
        """
        now, counts = time.perf_counter(), dict(self._model.cost)
        spent: dict[str, float] = {name: count - self._counts.get(name, 0) for name, count in counts.items()}
        spent["wall_seconds"] = now - self._since
        spent["peak_memory_bytes"] = peak_memory_bytes(self._model.device)
        spent["peak_working_bytes"] = max(0, spent["peak_memory_bytes"] - self._start)
        energy = energy_joules(self._model.device)
        if energy is not None and self._energy is not None:
            spent["energy_joules"] = spent.get("energy_joules", 0) + energy - self._energy
        self._counts, self._since, self._energy = counts, now, energy
        return {name: amount for name, amount in spent.items() if amount}


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


def cost_block(log: ResponseLog) -> dict[str, Any]:
    """The `cost` of results.json, over all sessions of a run. Tokens per second are tokens put through the model."""
    cost = log.cost
    wall, tokens_in = cost.get("wall_seconds", 0.0), int(cost.get("tokens_in", 0))
    return {
        "wall_seconds": wall,
        "load_seconds": cost.get("load_seconds", 0.0),
        "tokens_in": tokens_in,
        "tokens_out": int(cost.get("tokens_out", 0)),
        "near_ties": int(cost.get("near_ties", 0)),
        "tokens_per_second": tokens_in / wall if wall else None,
        "peak_memory_bytes": _whole(cost.get("peak_memory_bytes")),
        "peak_working_bytes": _whole(cost.get("peak_working_bytes")),
        "weight_bytes": _whole(cost.get("peak_weight_bytes")),
        "energy_joules": cost.get("energy_joules"),
        "device": log.environment.get("device"),
    }


def _whole(amount: float | None) -> int | None:
    return None if amount is None else int(amount)
