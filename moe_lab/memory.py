"""What weights take, what memory is free, and what a user is told when it does not suffice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.errors import MoeLabError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from moe_lab.run import Run
    from moe_lab.tuning.study import Study


@contextmanager
def memory_errors(run: Run | Study) -> Iterator[None]:
    """Turn "out of memory", of the device or of the machine, into a MoeLabError that says what needs less."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        smaller = ", method.n=" if hasattr(run.method.config, "n") else ""
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise MoeLabError(
            f"{run.folder.name}: out of memory: {reason[:300]}\n"
            f"What is answered is kept: the same command with a lower batch_size= (now {run.config.batch_size}) "
            f"continues.\nmax_length={smaller} and dtype= lower the need as well, but make another run."
        ) from error


def _out_of_memory(error: Exception) -> bool:
    """PyTorch's own class for devices; on a CPU its allocator raises a plain RuntimeError."""
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device."""
    import torch

    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_host_memory()


def free_host_memory(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes free on this machine, or in the container (its control group) where that is less."""
    import psutil

    free = psutil.virtual_memory().available
    limit, used = group / "memory.max", group / "memory.current"
    if limit.exists() and used.exists() and (most := limit.read_text().strip()) != "max":
        free = min(free, int(most) - int(used.read_text()))
    return max(free, 0)


def weight_memory(config: PreTrainedConfig, folder: Path, dtype: str) -> int | None:
    """Bytes of the weights as they run; None where they run quantized and are not all here.

    What runs in `dtype`, quantized checkpoints that are dequantized included, is counted by the model's parameters.
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


def training_text(size: int, free: int, device: torch.device) -> str:
    """What a training takes (`Method.training_memory`), and what to do where it does not fit."""
    advice = (
        " NOT ENOUGH: less is taken where experts are frozen in all phases (method.schedule=experts "
        "method.compare_with_full=false), and FSDP splits it over several GPUs: docs/finetuning.md"
    )
    return (
        f"weights, gradients and optimizer take {size_text(size)} in float32 at most, "
        f"{size_text(free)} are free on {device}{advice if size > free else ''}"
    )


def size_text(size: int) -> str:
    """Bytes as people write them."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"
