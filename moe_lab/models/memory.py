"""The memory of weights, and free memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig


def free_memory(device: torch.device) -> int:
    """Free bytes of a device."""
    import torch

    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_host_memory()


def free_host_memory(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Free bytes of this machine, or of the container (its control group) if that is less."""
    import psutil

    free = psutil.virtual_memory().available
    limit, used = group / "memory.max", group / "memory.current"
    if limit.exists() and used.exists() and (most := limit.read_text().strip()) != "max":
        free = min(free, int(most) - int(used.read_text()))
    return max(free, 0)


def weight_memory(config: PreTrainedConfig, folder: Path, dtype: str) -> int | None:
    """Bytes of the weights in memory; None for weights that run quantized and are not all on disk.

    Weights that run in `dtype`, including dequantized ones, are counted by the model's parameters.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from moe_lab.models.quantized import runs_quantized
    from moe_lab.models.weight_files import known_weights

    if runs_quantized(config):
        files = [folder / name for name in known_weights(folder) if not name.endswith(".json")]
        here = bool(files) and all(file.exists() for file in files)
        return sum(file.stat().st_size for file in files) if here else None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters()) * getattr(torch, dtype).itemsize


def size_text(size: int) -> str:
    """A number of bytes with a unit: 1.50 GB."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"
