"""The Hugging Face hub: a repository at one commit, its files in the cache, offline mode, and messages for errors.

One request with a time limit finds the commit of a revision. All later requests name the commit, so that all files of a
command are of one state of the repository, and cached files are used without another request. huggingface_hub
downloads.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from glob import escape
from pathlib import Path
from typing import Any

from moe_lab.config.catalog import option_files, read_option, resource_folder
from moe_lab.config.terminal import without_passwords
from moe_lab.config.validators import did_you_mean
from moe_lab.errors import ModelError, first_line
from moe_lab.models.files import WEIGHTS, with_shards

LOGIN = "HF_TOKEN=<your token> in front of the command, or `hf auth login` once"
BUSY = (408, 429, 500, 502, 503, 504)


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


@dataclass(frozen=True)
class Repository:
    """A model or data set of the hub at one commit."""

    id: str
    kind: str
    """model or dataset"""
    revision: str
    """Branch, tag or commit, as requested."""
    commit: str
    files: frozenset[str] | None
    """Names; None offline, where only the cache is known."""

    @property
    def snapshot(self) -> Path:
        """The folder with the commit's files that were fetched."""
        return _storage(self.id, self.kind) / "snapshots" / self.commit

    def holds(self, name: str) -> bool:
        """Whether the repository has this file; offline, whether the cache has it."""
        return name in self.files if self.files is not None else (self.snapshot / name).exists()


def _storage(id: str, kind: str) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=id, repo_type=kind)


def find(id: str, kind: str = "model", revision: str | None = None, *, offline: bool = False) -> Repository:
    """The repository at the current commit of its revision, requested once per process.

    If the hub cannot be reached, the process prints a line on stderr and continues as with offline=true. Raises the
    errors of the hub's client, LocalEntryNotFoundError if the cache lacks the repository or revision.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    def cached() -> Repository:
        # whether the snapshot is whole, `fetch` checks for the files that are needed
        only: dict[str, Any] = {"local_files_only": True, "allow_patterns": []}
        folder = snapshot_download(id, repo_type=kind, revision=revision, **only)
        return Repository(id, kind, revision or constants.DEFAULT_REVISION, Path(folder).name, None)

    if offline or is_offline():
        return cached()
    try:
        return _requested(id, kind, revision)
    except Exception as error:
        if not unreachable(error):
            raise
        try:
            found = cached()
        except LocalEntryNotFoundError:
            raise error from None
        _continue_offline(error)
        return found


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


def unreachable(error: BaseException) -> bool:
    """Whether a request did not reach the hub, or the hub is busy or out of order."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in BUSY
    return isinstance(error, httpx2.TransportError)


@lru_cache(maxsize=64)
def _requested(id: str, kind: str, revision: str | None) -> Repository:
    from huggingface_hub import HfApi, constants

    info: Any = HfApi().repo_info(
        id, repo_type=kind, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT
    )
    files = frozenset(sibling.rfilename for sibling in info.siblings)
    return Repository(id, kind, revision or constants.DEFAULT_REVISION, info.sha, files)


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

    Raises ModelError for a file that the repository lacks, LocalEntryNotFoundError if one is missing offline, and the
    errors of the hub's client.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    absent = [name for name in names if not (repository.snapshot / name).exists()]
    if absent and repository.files is None:
        raise LocalEntryNotFoundError(f"{absent[0]} is not in the cache")
    if unknown := sorted(set(absent) - (repository.files or set())):
        raise ModelError(
            f"{repository.id} lacks {unknown[0]}, which its own index names. Try another revision."
        )
    if absent:
        patterns = [escape(name) for name in absent]
        kind, commit = repository.kind, repository.commit
        snapshot_download(repository.id, repo_type=kind, revision=commit, allow_patterns=patterns)
    if repository.files is not None and repository.revision != repository.commit:
        # where the hub's client looks for the commit of a branch or tag offline
        ref = _storage(repository.id, repository.kind) / "refs" / repository.revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(repository.commit, encoding="utf-8")
    return repository.snapshot


# Messages


def explain(error: Exception, source: str, what: str) -> str:
    """The message for an error about `what` (model, tokenizer, data set) `source`, with a remedy.

    It never contains the token, which the messages of the hub's client do not show.
    """
    known = known_reason(error, source, what)
    return known or f"The {what} {source} could not be read: {_first_line(error)}"


def known_reason(error: Exception, source: str, what: str) -> str | None:
    """The message if the error, or one of its causes, is of the hub, else None."""
    reasons = [_reason(cause, source, what) for cause in _causes(error)]
    return next((f"The {what} {source} {reason}" for reason in reversed(reasons) if reason), None)


def _reason(error: BaseException, source: str, what: str) -> str | None:
    """What follows the name of a model or data set in a message; None for an exception that is not of the hub."""
    from huggingface_hub import constants, errors

    hub = without_passwords(constants.ENDPOINT)
    page = f"{hub}/{'datasets/' if what == 'data set' else ''}{source}"
    # `datasets` raises its own error without the cause
    gated = type(error).__name__ == "DatasetNotFoundError" and "is a gated dataset" in str(error)
    if isinstance(error, errors.GatedRepoError) or gated:
        return (
            "is gated: its owner lets in who has accepted the terms.\n"
            f"Accept them at {page}, then give your token: {LOGIN}."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"has no such revision.\nmodel.revision takes a branch, tag or commit of {page}/tree/main."
    if isinstance(error, errors.RepositoryNotFoundError):
        close = _close(source) if what == "model" else ""
        return (
            f"is not on the hub ({hub}), or private.{close}\nCheck the spelling; a private one needs {LOGIN}."
        )
    if isinstance(error, errors.HFValidationError):
        return "is no hub id. Give a local folder, or owner/name on the hub."
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled) or (
        "OfflineModeIsEnabled" in str(error) and type(error) is ConnectionError  # as `datasets` says it
    ):
        return (
            "is not available offline: it is not, or not whole, in the cache.\n"
            "Fetch it while there is a connection: the same command with mode=prefetch offline=false."
        )
    if unreachable(error):
        return (
            f"is not in the cache, and the hub ({hub}) could not be reached: {_first_line(error)}\n"
            "Check the connection and try again; where there is none, fill the cache elsewhere with mode=prefetch."
        )
    if isinstance(error, errors.HfHubHTTPError):
        return (
            f"could not be read: the hub answered with status {error.response.status_code}.\n"
            f"If it needs a token, check that yours may read it: {LOGIN}."
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        return (
            f"could not be stored: {error.strerror} ({error.filename or constants.HF_HUB_CACHE}).\n"
            "HF_HOME=<folder> puts the cache elsewhere."
        )
    return None


def _close(source: str) -> str:
    """A hint at the option of conf/model with a similar id."""
    files = option_files("model", [resource_folder("conf")])
    ids = {
        key.default: name
        for name, file in files.items()
        for key in read_option(file).keys
        if key.name == "path"
    }
    close = None if source in ids else re.search(r"'(.+)'", did_you_mean(source, ids))
    return f" Did you mean model={ids[close[1]]} ({close[1]})?" if close else ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and its causes, outermost first."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _first_line(error: BaseException) -> str:
    """The first line of an error, without the query strings of URLs, which may contain signatures."""
    return without_passwords(re.sub(r"(https?://[^\s'\"?]+)\?[^\s'\"]*", r"\1", first_line(error)))
