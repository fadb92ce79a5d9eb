"""Resumable downloads of a repository's files into the Hugging Face cache.

The hub's client starts an interrupted file from the beginning; a shard of a large model has gigabytes. Here a file
grows as `blobs/<etag>.incomplete`. When it is complete, its hash is checked and the client links it into the snapshot.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event

import httpx2
from filelock import FileLock
from huggingface_hub import constants, hf_hub_download, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    build_hf_headers,
    get_session,
    hf_raise_for_status,
)

from moe_lab.errors import ModelError
from moe_lab.models.hub.headers import index_of, is_whole
from moe_lab.models.hub.repository import File, NotCached, Repository, unreachable
from moe_lab.progress import Progress

WORKERS = 4
"""Concurrent downloads."""
TRIES = 3
"""Consecutive attempts without a new byte before a file fails."""

WAIT = 2.0
"""Seconds between attempts."""
BLOCK_BYTES = 2**20


def missing(repository: Repository, names: Iterable[str]) -> list[str]:
    """The files that the cache lacks, or has in another size than the hub."""
    return [name for name in names if not _whole(repository, name)]


def fetch(repository: Repository, names: Iterable[str]) -> Path:
    """Fetch the missing ones of these files. Returns the snapshot folder.

    Raises ModelError if the disk is too small or a file arrives damaged, NotCached if files are missing offline, and
    the errors of the hub's client.
    """
    names = list(names)
    unknown = [name for name in names if repository.files is not None and name not in repository.files]
    if unknown:
        raise ModelError(
            f"{repository.id} lacks {unknown[0]}, which its own index names. Try another revision."
        )
    absent = missing(repository, names)
    if absent and repository.files is None:
        named = ", ".join(absent[:3])
        raise NotCached(
            f"{len(absent)} of its files are absent or damaged in the cache {constants.HF_HUB_CACHE}: {named}"
        )
    if absent:
        check_space(repository, absent)
        _fetch_all(repository, absent)
    if repository.files is not None and repository.revision != repository.commit:
        _write_ref(repository)
    return repository.snapshot


def bytes_to_fetch(repository: Repository, names: Iterable[str]) -> int:
    """Bytes that `fetch` would still receive."""
    assert repository.files is not None
    files = [repository.files[name] for name in missing(repository, names)]
    return sum(file.size - _size(_partial(repository, file)) for file in files)


def check_space(repository: Repository, names: Iterable[str]) -> None:
    """Raise ModelError if the files do not fit on the cache's disk."""
    needed, free = bytes_to_fetch(repository, names), free_bytes(repository.storage)
    if needed > free:
        raise ModelError(
            f"{repository.id} needs {needed / 1e9:.2f} GB more in {constants.HF_HUB_CACHE}, "
            f"and {free / 1e9:.2f} GB are free there.\n"
            "Free some, or move the cache to another disk: HF_HOME=<folder>."
        )


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, which need not exist."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return shutil.disk_usage(existing).free


def _whole(repository: Repository, name: str) -> bool:
    file = repository.snapshot / name
    if not file.exists():
        return False
    if repository.files is not None:
        return file.stat().st_size == repository.files[name].size
    if name.endswith(".index.json"):
        return index_of(file) is not None
    return not name.endswith(".safetensors") or is_whole(file)


def _fetch_all(repository: Repository, names: list[str]) -> None:
    """Fetch several files at a time. After a failure or an interruption, partial files are kept."""
    stop = Event()
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            for one in as_completed([pool.submit(_fetch, repository, name, stop) for name in names]):
                one.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _fetch(repository: Repository, name: str, stop: Event) -> None:
    assert repository.files is not None
    file = repository.files[name]
    blob, pointer = _partial(repository, file).with_suffix(""), repository.snapshot / name
    if pointer.exists():
        print(f"{pointer} is damaged: fetching it again.", file=sys.stderr)
        pointer.resolve().unlink()
        pointer.unlink(missing_ok=True)
    blob.parent.mkdir(parents=True, exist_ok=True)
    lock = repository.storage.parent / ".locks" / repository.storage.name / f"{file.etag}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock, is_singleton=False):
        if not blob.exists():
            _complete(repository, file, stop)
            _check(repository, file)
            _partial(repository, file).replace(blob)
    hf_hub_download(repository.id, name, repo_type=repository.kind, revision=repository.commit)


def _complete(repository: Repository, file: File, stop: Event) -> None:
    """Complete a partial file, with new attempts as long as bytes arrive."""
    url = hf_hub_url(repository.id, file.name, repo_type=repository.kind, revision=repository.commit)
    partial, idle = _partial(repository, file), 0
    while (had := _size(partial)) < file.size:
        if stop.is_set():
            raise CancelledError
        try:
            _receive(url, partial, file, stop)
        except (httpx2.TransportError, HfHubHTTPError) as error:
            idle = 0 if _size(partial) > had else idle + 1
            if idle == TRIES or not unreachable(error):
                raise
            stop.wait(WAIT)


def _receive(url: str, partial: Path, file: File, stop: Event) -> None:
    """Append the hub's response to a partial file, from its end on."""
    had = _size(partial)
    headers = build_hf_headers() | {"Accept-Encoding": "identity", "Range": f"bytes={had}-"}
    with (
        get_session().stream(
            "GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
        ) as response,
        partial.open("ab") as out,
    ):
        hf_raise_for_status(response)
        if response.status_code != 206:
            out.truncate(0)  # a server without range requests sends the whole file
            had = 0
        shown = file.size >= BLOCK_BYTES and not are_progress_bars_disabled()
        with Progress(file.size, file.name, "B", initial=had, shown=shown) as progress:
            for chunk in response.iter_bytes():
                if stop.is_set():
                    raise CancelledError
                out.write(chunk)
                progress.update(len(chunk))


def _check(repository: Repository, file: File) -> None:
    """Raise ModelError and remove the partial file if its hash is not the hub's."""
    partial = _partial(repository, file)
    partial.touch()  # an empty file needed no request
    kind = "sha256" if file.large else "sha1"
    with partial.open("rb") as content:
        digest = hashlib.new(kind, b"" if file.large else f"blob {file.size}\0".encode())  # as git has it
        while block := content.read(BLOCK_BYTES):
            digest.update(block)
    if digest.hexdigest() != file.etag:
        partial.unlink()
        raise ModelError(
            f"{file.name} of {repository.id} arrived damaged: its {kind.upper()} is not the hub's.\n"
            "The same command fetches it again."
        )


def _partial(repository: Repository, file: File) -> Path:
    return repository.storage / "blobs" / f"{file.etag}.incomplete"


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _write_ref(repository: Repository) -> None:
    """Write the commit of the branch or tag where the hub's client reads it offline."""
    ref = repository.storage / "refs" / repository.revision
    if not ref.is_file() or ref.read_text(encoding="utf-8") != repository.commit:
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(repository.commit, encoding="utf-8")
