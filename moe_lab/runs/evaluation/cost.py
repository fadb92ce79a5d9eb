"""The cost of a run: time, tokens, peak memory, energy."""

import time
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch

from moe_lab.engine.lm import EngineLM
from moe_lab.models.memory import memory_bytes, peak_memory_bytes
from moe_lab.results.response_log import ResponseLog
from moe_lab.results.run_parts import Cost


class CostMeter:
    """Time, energy and the engine's counters since the last reading."""

    def __init__(self, model: EngineLM):
        self._model = model
        self._start = memory_bytes(model.device)
        self._counts = dict(model.cost)
        self._since = time.perf_counter()
        self._energy = energy_joules(model.device)

    def spent(self) -> dict[str, float]:
        """The cost since the last call, and the peaks so far in bytes. Zeros are left out.

        `peak_working_bytes` is the peak minus the memory before the first answer: that of the
        model, and outside of CUDA devices also that of Python and its libraries.
        """
        now = time.perf_counter()
        counts = dict(self._model.cost)
        spent: dict[str, float] = {}
        for name, count in counts.items():
            spent[name] = count - self._counts.get(name, 0)
        spent["wall_seconds"] = now - self._since
        spent["peak_memory_bytes"] = peak_memory_bytes(self._model.device)
        spent["peak_working_bytes"] = max(0, spent["peak_memory_bytes"] - self._start)
        energy = energy_joules(self._model.device)
        if energy is not None and self._energy is not None:
            spent["energy_joules"] = spent.get("energy_joules", 0) + energy - self._energy
        self._counts = counts
        self._since = now
        self._energy = energy
        return {name: amount for name, amount in spent.items() if amount}


def energy_joules(device: Any) -> float | None:
    """Energy that a CUDA device has drawn since its driver was loaded, in joules.

    None elsewhere, without the package nvidia-ml-py, and where the device does not report it.
    """
    if getattr(device, "type", None) != "cuda":
        return None
    handle = _nvml_handle(str(device))
    if handle is None:
        return None
    import pynvml

    return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000


@lru_cache(maxsize=8)
def _nvml_handle(device: str) -> Any:
    """The handle of a GPU whose energy NVML can read; None without pynvml, and for a GPU that does
    not measure it."""
    with suppress(ImportError):
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(
                f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            )
            pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            return handle
    return None


def cost_of(log: ResponseLog) -> Cost:
    """The cost of all sessions of a run. Tokens per second count the tokens in; they are None
    before an answer took time. Peaks, weights and energy are None where they were not measured."""
    spent = log.cost
    seconds = spent.get("wall_seconds", 0.0)
    tokens_in = _count(log, "tokens_in")
    device = log.environment.get("device")
    return Cost(
        wall_seconds=seconds,
        load_seconds=spent.get("load_seconds", 0.0),
        tokens_in=tokens_in,
        tokens_out=_count(log, "tokens_out"),
        near_ties=_count(log, "near_ties"),
        cut_prompts=_count(log, "cut_prompts"),
        cut_reasoning=_count(log, "cut_reasoning"),
        decoded_in_context=_count(log, "decoded_in_context"),
        eos_added=_count(log, "eos_added"),
        bos_scored=_count(log, "bos_scored"),
        no_end_token=_count(log, "no_end_token"),
        tokens_per_second=tokens_in / seconds if seconds else None,
        peak_memory_bytes=_bytes(log, "peak_memory_bytes"),
        peak_working_bytes=_bytes(log, "peak_working_bytes"),
        weight_bytes=_bytes(log, "peak_weight_bytes"),
        energy_joules=spent.get("energy_joules"),
        device=None if device is None else str(device),
    )


def _count(log: ResponseLog, name: str) -> int:
    """A counter; 0 where nothing was counted."""
    return int(log.cost.get(name, 0))


def _bytes(log: ResponseLog, name: str) -> int | None:
    """A number of bytes; None without an answer that was measured."""
    amount = log.cost.get(name)
    return None if amount is None else int(amount)
