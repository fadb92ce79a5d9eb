"""Digests of large files by content, computed once and kept in a cache of the user.

A cached digest is used only while device, inode, size, modification time and change time of the
file are the same. No program can set the change time. The cache is `~/.cache/moe_lab`, or the
folder of the variable MOE_LAB_CACHE.
"""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from moe_lab.config.paths import user_path
from moe_lab.config.progress import Progress

WHOLE_BYTES = 2**18
"""A file up to this size is hashed in one piece, and is not cached."""
CHUNK = 2**24
"""A larger file is hashed in chunks of this size, several at a time: hashing a chunk leaves other
threads running."""
THREADS = 8
SHOWN_BYTES = 2**30
"""A file of this size or more shows how far its hashing is."""


class FileState(NamedTuple):
    """By what a change of a file is noticed. Times in nanoseconds."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int


def digest_of(file: Path) -> str:
    """The digest of a file by its content, as hexadecimal digits. Raises OSError if it cannot be
    read."""
    stat = file.stat()
    if stat.st_size <= WHOLE_BYTES:
        return hashlib.sha256(str(stat.st_size).encode() + file.read_bytes()).hexdigest()
    state = FileState(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    cache = user_path(os.environ.get("MOE_LAB_CACHE", "~/.cache/moe_lab")) / "digests"
    return _cached(file, state, cache / f"{stat.st_dev}-{stat.st_ino}.json")


@lru_cache(maxsize=1024)
def _cached(file: Path, state: FileState, entry: Path) -> str:
    """The digest of a file in this state. `entry` keeps it; where that cannot be written, the next
    process hashes."""
    with suppress(OSError, ValueError, LookupError, TypeError):  # absent, unreadable or damaged
        stored = json.loads(entry.read_bytes())
        if stored["state"] == list(state):
            return str(stored["digest"])
    digest = _hash(file, state.size)
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

        def digest_at(start: int) -> bytes:
            return hashlib.sha256(os.pread(opened.fileno(), CHUNK, start)).digest()

        starts = range(0, size, CHUNK)
        for start, digest_of_chunk in zip(starts, pool.map(digest_at, starts), strict=True):
            digest.update(digest_of_chunk)
            progress.at(min(start + CHUNK, size))
    return digest.hexdigest()
