"""The identity of a model in run ids: hub id and revision, or digests of the files of a local
folder."""

import hashlib
import json
from pathlib import Path
from typing import Any

from moe_lab.config.paths import user_path
from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError, reading
from moe_lab.models.file_digests import digest_of
from moe_lab.models.hub import commit_of

SMALL = (".json", ".txt", ".model", ".jinja", ".tiktoken")
"""Endings of configurations, weight indices and tokenizer files."""
NOT_NUMBERS = frozenset(
    {"disable_mmap", "max_memory", "offload_buffers", "offload_folder", "tp_plan"}
)
"""Keywords of `model.load` that change no number."""
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
LOADED = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Files with weights in the order of transformers, which takes the first that exists."""


def weight_files(variant: str | None = None) -> list[str]:
    """The names of `LOADED`, with a variant before their endings: model.fp16.safetensors."""
    if variant is None:
        return list(LOADED)
    names = []
    for name in LOADED:
        stem, _, ending = name.rpartition(".")
        names.append(f"{stem}.{variant}.{ending}")
    return names


def known_weights(folder: Path, variant: str | None = None) -> list[str]:
    """The weight files of a folder, with the shards that its index names; none without weights or
    an index.

    Args:
        variant: `model.load.variant`.

    Raises ModelError if the index is damaged, or if it names files outside of the folder.
    """
    names = weight_files(variant)
    first = next((name for name in names if (folder / name).exists()), None)
    if first is None:
        return []
    if not is_index(first):
        return [first]
    index = folder / first
    with reading(index, "Save or copy the model again.", raises=ModelError, says="is damaged"):
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        for name in names:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ModelError(
                    f"{name} is outside of the model's folder. Keep all weights in it."
                )
    return [first, *names]


def is_index(name: str) -> bool:
    """Whether a file of `weight_files` names the shards with the weights."""
    return ".index." in name


def folder_content(folder: Path) -> dict[str, str]:
    """Digests of the files of a model folder by name. Raises ModelError if a file cannot be read.

    Included are weights in subfolders that an index names, and named chat templates in their own
    folder.
    """
    files = {folder / name for name in known_weights(folder)}
    content = {}
    with reading(folder, raises=ModelError):
        files.update(file for file in folder.iterdir() if file.suffix in (*WEIGHTS, *SMALL))
        files.update((folder / "additional_chat_templates").glob("*.jinja"))
        for file in sorted(files):
            if file.suffix in SMALL:
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
            else:
                digest = digest_of(file)
            content[file.relative_to(folder).as_posix()] = digest
    return content


def model_identity(source: str, model: ModelConfig) -> dict[str, Any]:
    """The identity of the model at `source`, a hub id or a local folder, of its tokenizer and its
    adapter.

    A tokenizer or an adapter of the hub counts with the current commit of the default branch.
    """

    identity = {
        "model": source_identity(source, model.revision),
        "tokenizer": _current_identity(model.tokenizer) if model.tokenizer else None,
        "experts_per_token": model.experts_per_token,
        "add_bos_token": model.add_bos_token,
    }
    if model.peft:
        identity["peft"] = _current_identity(model.peft)
    load = {name: value for name, value in model.load.items() if name not in NOT_NUMBERS}
    if load.get("use_safetensors"):  # the files that are taken first anyway
        del load["use_safetensors"]
    if load:
        identity["load"] = load
    if not model.merge_adapter:
        identity["merge_adapter"] = False
    return identity


def _current_identity(source: str) -> dict[str, Any]:
    """That of a folder, or of a repository of the hub at the current commit of its default
    branch."""
    commit = None if user_path(source).is_dir() else commit_of(source)
    return source_identity(source, commit)


def source_identity(source: str, revision: str | None) -> dict[str, Any]:
    """{"hub": id, "revision": ...}, or {"files": {name: hash}} for a local folder."""
    folder = user_path(source)
    if folder.is_dir():
        return {"files": folder_content(folder)}
    return {"hub": source, "revision": revision}
