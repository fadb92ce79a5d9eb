"""The identity of a model in run ids: hub id and revision, or digests of the files of a local folder.

The digest of a weight file is the SHA-256 of all of its content, computed once and kept in a cache of the user. A
cached digest is used only while device, inode, size, modification time and change time of the file are the same. No
program can set the change time. The cache is `~/.cache/moe_lab`, or the folder of the variable MOE_LAB_CACHE.
"""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from moe_lab.config.paths import user_path
from moe_lab.config.progress import Progress
from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError, reading
from moe_lab.models.hub import commit_of

WHOLE_BYTES = 2**18
"""A file up to this size is hashed in one piece, and is not cached."""
CHUNK = 2**24
"""A larger file is hashed in chunks of this size, several at a time: hashing a chunk leaves other threads running."""
THREADS = 8
SHOWN_BYTES = 2**30
"""A file of this size or more shows how far its hashing is."""


def digest_of(file: Path) -> str:
    """The digest of a file by its content, as hexadecimal digits. Raises OSError if it cannot be read."""
    stat = file.stat()
    if stat.st_size <= WHOLE_BYTES:
        return hashlib.sha256(str(stat.st_size).encode() + file.read_bytes()).hexdigest()
    state = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    cache = user_path(os.environ.get("MOE_LAB_CACHE", "~/.cache/moe_lab")) / "digests"
    return _cached(file, state, cache / f"{stat.st_dev}-{stat.st_ino}.json")


@lru_cache(maxsize=1024)
def _cached(file: Path, state: tuple[int, ...], entry: Path) -> str:
    """The digest of a file in this state. `entry` keeps it; where that cannot be written, the next process hashes."""
    with suppress(OSError, ValueError, LookupError, TypeError):  # absent, unreadable or damaged
        stored = json.loads(entry.read_bytes())
        if stored["state"] == list(state):
            return str(stored["digest"])
    digest = _hash(file, state[2])
    with suppress(OSError):
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = entry.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps({"state": state, "digest": digest}))
        written.replace(entry)
    return digest


def _hash(file: Path, size: int) -> str:
    """SHA-256 of the size and of the chunks' own SHA-256, in their order."""
    digest = hashlib.sha256(f"{size} in chunks of {CHUNK}".encode())
    with (
        file.open("rb", buffering=0) as opened,
        ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool,
        Progress(size, f"hashing {file.name}", "B", shown=size >= SHOWN_BYTES) as progress,
    ):
        starts = range(0, size, CHUNK)
        chunks = pool.map(
            lambda at: hashlib.sha256(os.pread(opened.fileno(), CHUNK, at)).digest(), starts
        )
        for start, hashed in zip(starts, chunks, strict=True):
            digest.update(hashed)
            progress.at(min(start + CHUNK, size))
    return digest.hexdigest()


# A model's files

SMALL = (".json", ".txt", ".model", ".jinja", ".tiktoken")
"""Endings of configurations, weight indices and tokenizer files."""
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
LOADED = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Files with weights in the order of transformers, which takes the first that exists."""


def known_weights(folder: Path) -> list[str]:
    """The weight files of a folder, with the shards that its index names; none without weights or an index.

    Raises ModelError if the index is damaged, or if it names files outside of the folder.
    """
    first = next((name for name in LOADED if (folder / name).exists()), None)
    if first is None or not first.endswith(".index.json"):
        return [first] if first else []
    with reading(
        folder / first, "Save or copy the model again.", raises=ModelError, says="is damaged"
    ):
        names = sorted(set(json.loads((folder / first).read_bytes())["weight_map"].values()))
        if outside := [
            name for name in names if Path(name).is_absolute() or ".." in Path(name).parts
        ]:
            raise ModelError(
                f"{outside[0]} is outside of the model's folder. Keep all weights in it."
            )
    return [first, *names]


def folder_content(folder: Path) -> dict[str, str]:
    """Digests of the files of a model folder by name. Raises ModelError if a file cannot be read.

    Included are weights in subfolders that an index names, and named chat templates in their own folder.
    """
    named = {folder / name for name in known_weights(folder)}
    with reading(folder, raises=ModelError):
        found = {file for file in folder.iterdir() if file.suffix in (*WEIGHTS, *SMALL)}
        templates = (folder / "additional_chat_templates").glob("*.jinja")
        return {
            file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
            if file.suffix in SMALL
            else digest_of(file)
            for file in sorted(found | named | {*templates})
        }


def model_identity(source: str, model: ModelConfig) -> dict[str, Any]:
    """The identity of the model at `source`, a hub id or a local folder, of its tokenizer and its adapter.

    A tokenizer or an adapter of the hub counts with the current commit of the default branch.
    """

    def current(other: str) -> dict[str, Any]:
        return source_identity(other, None if user_path(other).is_dir() else commit_of(other))

    return {
        "model": source_identity(source, model.revision),
        "tokenizer": current(model.tokenizer) if model.tokenizer else None,
        "experts_per_token": model.experts_per_token,
        "add_bos_token": model.add_bos_token,
        **({"peft": current(model.peft)} if model.peft else {}),
    }


def source_identity(source: str, revision: str | None) -> dict[str, Any]:
    """{"hub": id, "revision": ...}, or {"files": {name: hash}} for a local folder."""
    folder = user_path(source)
    return (
        {"files": folder_content(folder)}
        if folder.is_dir()
        else {"hub": source, "revision": revision}
    )
