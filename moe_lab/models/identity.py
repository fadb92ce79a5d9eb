"""The identity of a model in run ids: hub id and revision, or the content of a local folder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import ModelError

if TYPE_CHECKING:
    from moe_lab.config.schema import ModelConfig

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
SMALL = (".json", ".txt", ".model", ".jinja", ".tiktoken")
"""Endings of configurations, weight indices and tokenizer files."""
BLOCKS, BLOCK_BYTES = 32, 4096
WHOLE_BYTES = BLOCKS * BLOCK_BYTES * 2
"""A weight file up to this size is hashed whole."""


def model_identity(source: str, model: ModelConfig) -> dict[str, Any]:
    """The identity of the model at `source`, a hub id or a local folder, and of its tokenizer.

    Weight files are represented by name, size, header and sampled blocks, which takes milliseconds and changes with
    retraining.
    """
    return {
        "model": source_identity(source, model.revision),
        "tokenizer": _tokenizer_identity(model.tokenizer) if model.tokenizer else None,
        "experts_per_token": model.experts_per_token,
        "add_bos_token": model.add_bos_token,
    }


def _tokenizer_identity(source: str) -> dict[str, Any]:
    """The identity of a tokenizer; on the hub with the current commit of the default branch."""
    from moe_lab.models.hub.repository import find

    folder = Path(source).expanduser().is_dir()
    return source_identity(source, None if folder else find(source).commit)


def source_identity(source: str, revision: str | None) -> dict[str, Any]:
    """{"hub": id, "revision": ...}, or {"files": {name: hash}} for a local folder."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return {"hub": source, "revision": revision}
    return {"files": folder_content(folder)}


def folder_content(folder: Path) -> dict[str, str]:
    """Hashes of the files of a model folder by name. Raises ModelError if a file cannot be read."""
    content = {}
    try:
        for file in sorted(folder.iterdir()):
            if file.suffix in WEIGHTS:
                content[file.name] = weights_fingerprint(file)
            elif file.suffix in SMALL and file.is_file():
                content[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise ModelError(f"{error.filename} cannot be read: {error.strerror}.") from error
    return content


def weights_fingerprint(file: Path) -> str:
    """SHA-256 of a weight file's size, its beginning (with a safetensors header) and evenly spaced blocks."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as weights:
        if size <= WHOLE_BYTES:
            digest.update(weights.read())
            return digest.hexdigest()
        header = int.from_bytes(weights.read(8), "little")
        weights.seek(0)
        digest.update(weights.read(8 + min(header, WHOLE_BYTES)))
        for block in range(BLOCKS):
            weights.seek(block * (size - BLOCK_BYTES) // (BLOCKS - 1))
            digest.update(weights.read(BLOCK_BYTES))
    return digest.hexdigest()
