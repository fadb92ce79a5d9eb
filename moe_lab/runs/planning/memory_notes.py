"""What a plan says of the memory of its rows."""

from collections.abc import Sequence
from math import ceil

from moe_lab.models.facts import resolve_device
from moe_lab.models.memory import free_memory
from moe_lab.runs.planning.memory import GIGABYTE, GPU, USABLE, gpu_memory
from moe_lab.runs.planning.rows import Row


def memory_notes(rows: Sequence[Row]) -> list[str]:
    """A note on the row that takes the most memory, and its GPUs; none without planned memory.

    A second note if a smaller training has to fit on one GPU and does not: on the largest of these.
    """
    planned = [row for row in rows if row.gpu_memory is not None]
    if not planned:
        return []
    gpu = min(gpu_memory(), default=GPU)
    largest = max(planned, key=_bytes_of)
    device = resolve_device(largest.config.device)
    free = free_memory(device) / GIGABYTE
    notes = [
        f"GPU memory: at most {_size_and_names(largest)}, {_gpus_of(largest, gpu)}. "
        f"Free here, on {device}: {free:,.3g} GB."
    ]
    too_large_rows = [row for row in planned if row.one_device and _bytes_of(row) > USABLE * gpu]
    too_large = max(too_large_rows, key=_bytes_of, default=largest)
    if too_large is not largest:
        notes.append(
            f"GPU memory of a training: {_size_and_names(too_large)}, {_gpus_of(too_large, gpu)}."
        )
    return notes


def _bytes_of(row: Row) -> int:
    """The memory of a row that has it planned."""
    assert row.gpu_memory is not None
    return row.gpu_memory


def _size_and_names(row: Row) -> str:
    """The memory of a row, and its model and method."""
    size = _bytes_of(row) / GIGABYTE
    return f"{size:,.3g} GB (model={row.config.model.name} method={row.config.method.name})"


def _gpus_of(row: Row, gpu: float) -> str:
    """The number of GPUs of `gpu` bytes that hold a row, or why none does."""
    gpus = ceil(_bytes_of(row) / (USABLE * gpu))
    gpu_size = f"{gpu / GIGABYTE:,.0f} GB"
    if gpus > 1 and row.one_device:
        needed = _bytes_of(row) / USABLE / GIGABYTE
        return (
            f"which is too much for one GPU of {gpu_size}, and {row.one_device}. "
            f"Use a GPU of at least {needed:,.0f} GB"
        )
    return f"which takes {gpus} of {gpu_size} with {1 - USABLE:.0%} of each left over"
