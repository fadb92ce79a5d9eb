"""What a safetensors file says of itself: its tensors, and how many bytes it should have."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

MAX_HEADER = 100_000_000
"""Bytes of a header, as the format limits it."""
FLOATING = ("F64", "F32", "F16", "BF16")
"""Tensors that take the dtype that a model is loaded in; others (quantized ones) keep their own."""


def read_header(file: Path) -> dict[str, Any]:
    """Its tensors by name: {"dtype", "shape", "data_offsets"}. Raises ValueError where the header is torn."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        header = json.loads(content.read(min(length, MAX_HEADER)))
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def is_whole(file: Path) -> bool:
    """Whether a safetensors file has the size that its header tells."""
    try:
        tensors = read_header(file)
    except ValueError:
        return False
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
    end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    return file.stat().st_size == 8 + length + end


def loaded_bytes(file: Path, item_bytes: int) -> int:
    """What its tensors take in memory in a dtype of so many bytes."""
    sizes = (
        prod(tensor["shape"]) * item_bytes
        if tensor["dtype"] in FLOATING
        else tensor["data_offsets"][1] - tensor["data_offsets"][0]
        for tensor in read_header(file).values()
    )
    return sum(sizes)
