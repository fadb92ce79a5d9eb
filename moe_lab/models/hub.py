"""The Hugging Face hub: a repository at one commit, its files in the cache, and offline mode.

One request with a time limit finds the commit of a revision. All later requests name the commit, so that all files of a
command are of one state of the repository, and cached files are used without another request.

huggingface_hub downloads the files. Its `hf_hub_download` deletes the partial file of an interrupted HTTP download, and
a shard of a large model has gigabytes. So here its `http_get` writes to a partial file that the next command continues,
and `hf_hub_download` links the finished file. `hf_hub_download` fetches a repository on Xet without this.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from moe_lab.errors import ModelError
from moe_lab.models.files import WEIGHTS, index_of, is_whole, with_shards

T = TypeVar("T")
WAITS = (1.0, 2.0)
"""Seconds before a request is repeated if the hub is busy or out of order."""
BUSY = (408, 429, 500, 502, 503, 504)
WORKERS = 4
"""Concurrent downloads."""
BLOCK_BYTES = 2**20
"""A smaller file has no progress bar."""


def go_offline() -> None:
    """Set the Hugging Face libraries to offline mode, before or after they are imported."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    for name in ("huggingface_hub.constants", "datasets.config"):
        if name in sys.modules:
            sys.modules[name].HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def is_offline() -> bool:
    """Whether the libraries are offline: by offline=true, HF_HUB_OFFLINE=1, or since the hub could not be reached."""
    from huggingface_hub import constants

    return constants.is_offline_mode()


class NotCached(ConnectionError):
    """The cache lacks a file that is needed offline."""


@dataclass(frozen=True)
class File:
    """A file of a repository."""

    name: str
    size: int
    etag: str
    """Name of the content in the cache: SHA-256 of a large file, git's object id of any other."""
    large: bool


@dataclass(frozen=True)
class Repository:
    """A model or data set of the hub at one commit."""

    id: str
    kind: str
    """model or dataset"""
    revision: str
    """Branch, tag or commit, as requested."""
    commit: str
    files: dict[str, File] | None
    """By name; None offline, where only the cache is known."""

    @property
    def storage(self) -> Path:
        """The repository's folder in the cache."""
        return storage(self.id, self.kind)

    @property
    def snapshot(self) -> Path:
        """The folder with the commit's files that were fetched."""
        return self.storage / "snapshots" / self.commit

    def holds(self, name: str) -> bool:
        """Whether the repository has this file; offline, whether the cache has it."""
        return name in self.files if self.files is not None else (self.snapshot / name).exists()


def storage(id: str, kind: str) -> Path:
    """A repository's folder in the Hugging Face cache; it need not exist."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=id, repo_type=kind)


# A repository at the commit of its revision


def find(id: str, kind: str = "model", revision: str | None = None, *, offline: bool = False) -> Repository:
    """The repository at the current commit of its revision, requested once per process.

    If the hub cannot be reached, the process prints a line on stderr and continues as with offline=true. Raises the
    errors of the hub's client, and NotCached if the cache lacks the repository or revision.
    """
    from huggingface_hub import constants

    if not (offline or is_offline()):
        try:
            return _requested(id, kind, revision)
        except Exception as error:
            if not unreachable(error) or cached_commit(id, kind, revision) is None:
                raise
            _continue_offline(error)
    commit = cached_commit(id, kind, revision)
    if commit is None:
        raise NotCached(f"it is not in the cache {constants.HF_HUB_CACHE}")
    return Repository(id, kind, revision or "main", commit, None)


def check_data_set(id: str, revision: str | None = None) -> None:
    """Raise the hub client's error for a data set that does not exist. Requested once per process.

    If the hub cannot be reached, the process prints a line on stderr and continues as with offline=true; `datasets`
    would send several requests and wait long for each.
    """
    if is_offline():
        return
    try:
        _requested(id, "dataset", revision)
    except Exception as error:
        if not unreachable(error):
            raise
        _continue_offline(error)


def _continue_offline(error: Exception) -> None:
    print(f"The hub cannot be reached ({error}): continuing with the cache alone.", file=sys.stderr)
    go_offline()


def cached_commit(id: str, kind: str, revision: str | None) -> str | None:
    """The commit of a revision at the latest request; None if the cache lacks it."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import REGEX_COMMIT_HASH

    folder, name = storage(id, kind), revision or constants.DEFAULT_REVISION
    ref = folder / "refs" / name
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else name
    known = REGEX_COMMIT_HASH.fullmatch(commit) and (folder / "snapshots" / commit).is_dir()
    return commit if known else None


def unreachable(error: BaseException) -> bool:
    """Whether a request did not reach the hub, or the hub is busy or out of order."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in BUSY
    return isinstance(error, httpx2.TransportError)


def _patiently(call: Callable[[], T]) -> T:
    """The result of a request, which is repeated while the hub is busy or out of order."""
    from huggingface_hub.errors import HfHubHTTPError

    for wait in WAITS:
        try:
            return call()
        except HfHubHTTPError as error:
            if not unreachable(error):
                raise
            time.sleep(wait)
    return call()


@lru_cache(maxsize=64)
def _requested(id: str, kind: str, revision: str | None) -> Repository:
    from huggingface_hub import HfApi, constants

    limit = constants.HF_HUB_ETAG_TIMEOUT
    info: Any = _patiently(
        lambda: HfApi().repo_info(id, repo_type=kind, revision=revision, timeout=limit, files_metadata=True)
    )
    files = {
        sibling.rfilename: File(
            sibling.rfilename,
            sibling.lfs.size if sibling.lfs else sibling.size,
            sibling.lfs.sha256 if sibling.lfs else sibling.blob_id,
            sibling.lfs is not None,
        )
        for sibling in info.siblings
        if sibling.blob_id is not None
    }
    return Repository(id, kind, revision or constants.DEFAULT_REVISION, info.sha, files)


# Its files in the cache


def weight_files(repository: Repository) -> list[str]:
    """The weight files of a repository: one file, or an index and its shards.

    Raises ModelError if there are none.
    """
    first = next((name for name in WEIGHTS if repository.holds(name)), None)
    if first is None:
        if repository.files is None:
            return list(WEIGHTS[:1])  # offline: the hub may have another one
        raise ModelError(f"The repository {repository.id} holds no weights that transformers loads.")
    if not first.endswith(".index.json"):
        return [first]
    return with_shards(fetch(repository, [first]), first)


def fetch(repository: Repository, names: Iterable[str]) -> Path:
    """Fetch the missing ones of these files. Returns the snapshot folder.

    Raises ModelError if the disk is too small or a file arrives damaged, NotCached if files are missing offline, and
    the errors of the hub's client.
    """
    from huggingface_hub import constants

    names = list(names)
    unknown = [name for name in names if repository.files is not None and name not in repository.files]
    if unknown:
        raise ModelError(
            f"{repository.id} lacks {unknown[0]}, which its own index names. Try another revision."
        )
    absent = [name for name in names if not _whole(repository, name)]
    if absent and repository.files is None:
        named = ", ".join(absent[:3])
        raise NotCached(
            f"{len(absent)} of its files are absent or damaged in the cache {constants.HF_HUB_CACHE}: {named}"
        )
    if absent:
        _check_space(repository, absent)
        _fetch_all(repository, absent)
    if repository.files is not None and repository.revision != repository.commit:
        _write_ref(repository)
    return repository.snapshot


def _check_space(repository: Repository, names: Iterable[str]) -> None:
    """Raise ModelError if the missing bytes of these files do not fit on the cache's disk."""
    from huggingface_hub import constants

    assert repository.files is not None
    files = [repository.files[name] for name in names]
    parts = [_partial(repository, file) for file in files]
    had = sum(part.stat().st_size for part in parts if part.exists())
    needed = sum(file.size for file in files) - had
    free = free_bytes(repository.storage)
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
    """Whether the cache has this file in the hub's size; offline, with undamaged content."""
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
    stop, pool = Event(), ThreadPoolExecutor(WORKERS)
    try:
        for one in as_completed([pool.submit(_fetch, repository, name, stop) for name in names]):
            one.result()
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)


def _fetch(repository: Repository, name: str, stop: Event) -> None:
    from huggingface_hub import hf_hub_download, hf_hub_url

    assert repository.files is not None
    file, pointer = repository.files[name], repository.snapshot / name
    if pointer.exists():  # in another size than the hub's
        print(f"{pointer} is damaged: fetching it again.", file=sys.stderr)
        pointer.resolve().unlink()
        pointer.unlink(missing_ok=True)
    place: dict[str, Any] = {"repo_type": repository.kind, "revision": repository.commit}
    url = hf_hub_url(repository.id, name, **place)
    if not (file.large and _is_on_xet(url)):
        _complete(repository, file, url, stop)
    hf_hub_download(repository.id, name, **place)


def _is_on_xet(url: str) -> bool:
    from huggingface_hub import constants, get_hf_file_metadata

    if constants.HF_HUB_DISABLE_XET or find_spec("hf_xet") is None:
        return False
    return _patiently(lambda: get_hf_file_metadata(url)).xet_file_data is not None


def _complete(repository: Repository, file: File, url: str, stop: Event) -> None:
    """Complete a partial file and move it to where `hf_hub_download` finds it.

    A lock keeps other commands from writing to it. Where locks have no effect (some network file systems), two commands
    damage the file, and the check of its hash refuses it.
    """
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    partial = _partial(repository, file)
    blob = partial.with_suffix("")
    lock = repository.storage.parent / ".locks" / repository.storage.name / f"{file.etag}.lock"
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}

    def receive() -> None:
        with partial.open("ab") as out:
            had = out.tell() if out.tell() <= file.size else out.truncate(0)
            bar = _stoppable_bar(stop, shown=file.size >= BLOCK_BYTES)
            shown: dict[str, Any] = {"displayed_filename": file.name, "tqdm_class": bar}
            http_get(url, out, resume_size=had, headers=headers, expected_size=file.size, **shown)

    with WeakFileLock(lock):
        if not blob.exists():
            _patiently(receive)
            _check(repository, file)
            partial.replace(blob)


def _stoppable_bar(stop: Event, shown: bool) -> Any:
    """A progress bar class that ends a download with its next bytes once `stop` is set.

    `http_get` runs in a thread, which Ctrl-C does not reach, and it reports bytes before it writes them.
    """
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **options | ({} if shown else {"disable": True}))

        def update(self, n: float | None = 1) -> bool | None:
            if stop.is_set():
                raise CancelledError
            return super().update(n)

    return Bar


def _check(repository: Repository, file: File) -> None:
    """Raise ModelError and remove the partial file if its hash is not the hub's."""
    partial = _partial(repository, file)
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


def _write_ref(repository: Repository) -> None:
    """Write the commit of the branch or tag where the hub's client reads it offline."""
    ref = repository.storage / "refs" / repository.revision
    if not ref.is_file() or ref.read_text(encoding="utf-8") != repository.commit:
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(repository.commit, encoding="utf-8")
