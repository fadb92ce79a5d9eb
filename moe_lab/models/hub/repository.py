"""The commit of a revision and the files of a repository, from one request with a time limit.

All later requests name the commit, so that all files of a command are of one state of the repository, and cached files
are used without another request.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.file_download import REGEX_COMMIT_HASH, repo_folder_name

from moe_lab.models.hub.offline import go_offline, is_offline

WAITS = (1.0, 2.0)
"""Seconds before a request is repeated if the hub is busy or out of order."""
BUSY = (408, 429, 500, 502, 503, 504)


class NotCached(OfflineModeIsEnabled):
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
        """Its folder in the cache."""
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
    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=id, repo_type=kind)


def find(id: str, kind: str = "model", revision: str | None = None, *, offline: bool = False) -> Repository:
    """The repository at the current commit of its revision, requested once per process.

    If the hub cannot be reached, the process prints a line on stderr and continues as with offline=true. Raises the
    errors of the hub's client, and NotCached if the cache lacks the repository or revision.
    """
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
    print(f"The hub cannot be reached ({error}): going on with the cache alone.", file=sys.stderr)
    go_offline()


def cached_commit(id: str, kind: str, revision: str | None) -> str | None:
    """The commit of a revision at the latest request; None if the cache lacks it."""
    folder, name = storage(id, kind), revision or constants.DEFAULT_REVISION
    ref = folder / "refs" / name
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else name
    return (
        commit if REGEX_COMMIT_HASH.fullmatch(commit) and (folder / "snapshots" / commit).is_dir() else None
    )


def unreachable(error: BaseException) -> bool:
    """Whether a request did not reach the hub, or the hub is busy or out of order."""
    import httpx2

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in BUSY
    return isinstance(error, httpx2.TransportError)


@lru_cache(maxsize=64)
def _requested(id: str, kind: str, revision: str | None) -> Repository:
    info = _repo_info(id, kind, revision)
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


def _repo_info(id: str, kind: str, revision: str | None) -> Any:
    for wait in (*WAITS, None):
        try:
            return HfApi().repo_info(
                id,
                repo_type=kind,
                revision=revision,
                timeout=constants.HF_HUB_ETAG_TIMEOUT,
                files_metadata=True,
            )
        except HfHubHTTPError as error:
            if wait is None or not unreachable(error):
                raise
            time.sleep(wait)
