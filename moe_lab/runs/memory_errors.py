"""The error for a run or a study that is out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from moe_lab.config.schema import Config
from moe_lab.errors import MoeLabError


class Work(Protocol):
    """A run or a study."""

    @property
    def config(self) -> Config: ...
    @property
    def folder(self) -> Path: ...
    @property
    def method(self) -> Any: ...


@contextmanager
def memory_errors(run: Work) -> Iterator[None]:
    """Turn "out of memory", of the device or the machine, into a MoeLabError that names settings which need less."""
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
    """Devices raise PyTorch's OutOfMemoryError, the CPU allocator a plain RuntimeError."""
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
