"""The identity of a model in run ids: hub id and revision, or digests of the files of a local folder.

The digest of a weight file is the SHA-256 of all of its content, computed once and kept in a cache of the user. A
cached digest is used only while device, inode, size, modification time and change time of the file are the same. No
program can set the change time. The cache is `~/.cache/moe_lab`, or the folder of the variable MOE_LAB_CACHE.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.progress import Progress
from moe_lab.errors import ModelError
from moe_lab.models.files import known_weights
from moe_lab.models.hub import find

if TYPE_CHECKING:
    from moe_lab.config.schema import ModelConfig

WHOLE_BYTES = 2**18
"""A file up to this size is hashed in one piece, and is not cached."""
CHUNK = 2**24
"""A larger file is hashed in chunks of this size, several at a time: hashing a chunk leaves other threads running."""
READ_BYTES = 2**20
THREADS = 8
SHOWN_BYTES = 2**30
"""A file of this size or more shows how far its hashing is."""
SETTLED_NS = 2 * 10**9
"""A file that changed later than this before it was hashed is hashed again the next time: a second change within the
same tick of the file system's clock (2 seconds at most, on FAT) would leave its times as they are."""

State = list[int]
"""Device, inode, size, modification time and change time of a file."""
_known: dict[tuple[int, ...], str] = {}
"""Digests that this process computed or found in the cache."""


def digest_of(file: Path) -> str:
    """The digest of a file by its content, as hexadecimal digits. Raises OSError if it cannot be read."""
    state = _state(file)
    if state[2] <= WHOLE_BYTES:
        return hashlib.sha256(str(state[2]).encode() + file.read_bytes()).hexdigest()
    known = _known.get(tuple(state)) or _stored(state)
    if known is not None:
        _known[tuple(state)] = known
        return known
    start = time.time_ns()
    digest = _hash(file, state[2])
    settled = max(state[3:]) < start - SETTLED_NS
    if settled and _state(file) == state:
        _known[tuple(state)] = digest
        _store(state, digest)
    return digest


def _state(file: Path) -> State:
    stat = file.stat()
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _hash(file: Path, size: int) -> str:
    """SHA-256 of the size and of the chunks' own SHA-256, in their order."""
    digest = hashlib.sha256(f"{size} in chunks of {CHUNK}".encode())
    with (
        file.open("rb", buffering=0) as opened,
        Progress(size, f"hashing {file.name}", "B", shown=size >= SHOWN_BYTES) as progress,
    ):
        for chunk, hashed in zip(range(0, size, CHUNK), _chunks(opened.fileno(), size), strict=True):
            digest.update(hashed)
            progress.at(min(chunk + CHUNK, size))
    return digest.hexdigest()


def _chunks(opened: int, size: int) -> Iterator[bytes]:
    """The SHA-256 of each chunk of an open file."""
    places = range(0, size, CHUNK)
    threads = min(THREADS, len(places), os.cpu_count() or 1)
    if threads < 2:
        yield from (_chunk(opened, place) for place in places)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(lambda place: _chunk(opened, place), places)


def _chunk(opened: int, place: int) -> bytes:
    digest = hashlib.sha256()
    for start in range(place, place + CHUNK, READ_BYTES):
        digest.update(os.pread(opened, READ_BYTES, start))
    return digest.digest()


def _entry(state: State) -> Path | None:
    """The cache's file about a file, one for each inode; None where the user has no folder for it."""
    named = os.environ.get("MOE_LAB_CACHE")
    try:
        folder = Path(named) if named else Path.home() / ".cache" / "moe_lab"
    except RuntimeError:  # there is no home folder
        return None
    return folder / "digests" / f"{state[0]}-{state[1]}.json"


def _stored(state: State) -> str | None:
    """The digest in the cache; None if there is none of this state."""
    entry = _entry(state)
    try:
        content = None if entry is None else json.loads(entry.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None  # absent, unreadable or damaged: the file is hashed again
    if not isinstance(content, dict) or content.get("state") != state:
        return None
    digest = content.get("digest")
    return digest if isinstance(digest, str) and len(digest) == hashlib.sha256().digest_size * 2 else None


def _store(state: State, digest: str) -> None:
    """Keep a digest. If the cache cannot be written, the next process hashes again."""
    entry = _entry(state)
    if entry is None:
        return
    with suppress(OSError):
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=entry.parent, prefix=f".{entry.name}.")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump({"state": state, "digest": digest}, file)
            os.replace(name, entry)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(name)
            raise


WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
SMALL = (".json", ".txt", ".model", ".jinja", ".tiktoken")
"""Endings of configurations, weight indices and tokenizer files."""
TEMPLATES = "additional_chat_templates"
"""The folder of transformers for chat templates with a name."""


def model_identity(source: str, model: ModelConfig) -> dict[str, Any]:
    """The identity of the model at `source`, a hub id or a local folder, of its tokenizer and its adapter.

    Weight files are represented by the digest of their whole content, which is computed once.
    """
    return {
        "model": source_identity(source, model.revision),
        "tokenizer": _current_identity(model.tokenizer) if model.tokenizer else None,
        "experts_per_token": model.experts_per_token,
        "add_bos_token": model.add_bos_token,
        **({"peft": _current_identity(model.peft)} if model.peft else {}),
    }


def _current_identity(source: str) -> dict[str, Any]:
    """The identity of a tokenizer or an adapter; on the hub with the current commit of the default branch."""
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

    Included are weights in subfolders that an index names, and named chat templates in their own folder.
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
