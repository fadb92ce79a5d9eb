"""Headers of weight files: the tensors of a safetensors file, the shards of an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MAX_HEADER = 100_000_000
"""The format's limit of a header, in bytes."""


def read_header(file: Path) -> dict[str, Any]:
    """The tensors of a safetensors file by name: {"dtype", "shape", "data_offsets"}. Raises ValueError if it is cut."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        header = json.loads(content.read(min(length, MAX_HEADER)))
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def is_whole(file: Path) -> bool:
    """Whether a safetensors file has the size of its header."""
    try:
        tensors = read_header(file)
    except ValueError:
        return False
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
    end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    return file.stat().st_size == 8 + length + end


def index_of(file: Path) -> dict[str, str] | None:
    """The file of each tensor by an index of shards; None if the index is damaged."""
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None
    places = index.get("weight_map") if isinstance(index, dict) else None
    named = isinstance(places, dict) and all(isinstance(name, str) for name in places.values())
    return places if named and places else None
