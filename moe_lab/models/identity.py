"""The identity of a model in run ids: hub id and revision, or the content of a local folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import ModelError
from moe_lab.models.file_digest import digest_of
from moe_lab.models.weight_files import known_weights

if TYPE_CHECKING:
    from moe_lab.config.schema import ModelConfig

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
SMALL = (".json", ".txt", ".model", ".jinja", ".tiktoken")
"""Endings of configurations, weight indices and tokenizer files."""
TEMPLATES = "additional_chat_templates"
"""The folder of transformers for chat templates with a name."""


def model_identity(source: str, model: ModelConfig) -> dict[str, Any]:
    """The identity of the model at `source`, a hub id or a local folder, and of its tokenizer.

    Weight files are represented by the digest of their whole content, which is computed once (`file_digest.py`).
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
    """Digests of the files of a model folder by name. Raises ModelError if a file cannot be read.

    Weights that an index names count wherever they are below the folder, and named chat templates in their own folder.
    """
    content, file = {}, folder
    try:
        for file in _model_files(folder):
            name = file.relative_to(folder).as_posix()
            if file.suffix not in SMALL:
                if file.exists() and not file.is_file():
                    raise ModelError(f"{file} is no file of weights. Remove it from the model's folder.")
                content[name] = digest_of(file)
            elif file.is_file():
                content[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise ModelError(f"{error.filename or file} cannot be read: {error.strerror}.") from error
    return content


def _model_files(folder: Path) -> Iterator[Path]:
    named = {folder / name for name in known_weights(folder)}
    files = {file for file in folder.iterdir() if file.suffix in (*WEIGHTS, *SMALL)}
    yield from sorted(files | named | {*(folder / TEMPLATES).glob("*.jinja")})
