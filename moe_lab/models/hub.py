"""The Hugging Face hub: a repository's files at one commit, offline mode, and messages for errors.

One request with a time limit finds the commit of a revision. All downloads name the commit, so that
all files of a command are of one state of the repository. huggingface_hub downloads and caches.
"""

import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from moe_lab.config.terminal import print_message, without_passwords
from moe_lab.errors import first_line

ADAPTER = "adapter_config.json"
"""transformers loads such an adapter with a model that has one in its folder."""
LOGIN = "HF_TOKEN=<your token> in front of the command, or `hf auth login` once"


def go_offline() -> None:
    """Set the Hugging Face libraries to offline mode, before or after they are imported."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    for name in ("huggingface_hub.constants", "datasets.config"):
        if name in sys.modules:
            sys.modules[name].HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def is_offline() -> bool:
    """Whether the libraries are offline: by offline=true, HF_HUB_OFFLINE=1, or since the hub could
    not be reached."""
    from huggingface_hub import constants

    return constants.is_offline_mode()


def commit_of(
    id: str, kind: str = "model", revision: str | None = None, *, offline: bool = False
) -> str:
    """The commit of a revision of a model or dataset, requested once per process; offline, that of
    the cache.

    If the hub cannot be reached, the process prints a line on stderr and continues as with
    offline=true. Raises the errors of the hub's client, LocalEntryNotFoundError if the cache lacks
    the revision.
    """
    import httpx2
    from huggingface_hub import errors, snapshot_download

    if not (offline or is_offline()):
        try:
            return _requested(id, kind, revision).commit
        except (errors.HfHubHTTPError, httpx2.TransportError) as error:
            status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else 500
            if status < 500 and status not in (408, 429):  # neither busy nor out of order
                raise
            print_message(f"The hub cannot be reached ({error}): continuing with the cache alone.")
            go_offline()
    cached: dict[str, Any] = {"allow_patterns": [], "local_files_only": True}
    return Path(snapshot_download(id, repo_type=kind, revision=revision, **cached)).name


@dataclass(frozen=True)
class Revision:
    """What the hub says of a revision of a repository."""

    commit: str
    files: frozenset[str]
    """Paths in the repository."""


def files_of(id: str, kind: str = "model", revision: str | None = None) -> frozenset[str] | None:
    """The paths of all files in a revision, of the request that finds its commit; None where the
    hub is not asked.

    Raises the errors of `commit_of`.
    """
    commit_of(id, kind, revision)  # goes offline if the hub cannot be reached
    return None if is_offline() else _requested(id, kind, revision).files


@lru_cache(maxsize=64)
def _requested(id: str, kind: str, revision: str | None) -> Revision:
    """What the hub says of a revision, asked once. Notes the commit in the cache, for use
    offline."""
    from huggingface_hub import HfApi, constants

    info: Any = HfApi().repo_info(
        id, repo_type=kind, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT
    )
    commit = str(info.sha)
    if revision != commit:  # where the hub's client looks for the commit of a branch or tag offline
        repository_folder = snapshot(id, kind, commit).parents[1]
        ref = repository_folder / "refs" / (revision or constants.DEFAULT_REVISION)
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit, encoding="utf-8")
    return Revision(commit, frozenset(file.rfilename for file in info.siblings or ()))


def cached_commit(id: str, kind: str = "model") -> str | None:
    """`commit_of` the default revision; None offline if the cache lacks it."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return commit_of(id, kind)
    except LocalEntryNotFoundError:
        return None


def snapshot(id: str, kind: str, commit: str) -> Path:
    """The folder in the cache with the files of a commit that were fetched."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(
        constants.HF_HUB_CACHE, repo_folder_name(repo_id=id, repo_type=kind), "snapshots", commit
    )


@lru_cache(maxsize=256)
def fetch(id: str, kind: str, commit: str, patterns: tuple[str, ...], offline: bool) -> Path:
    """The folder with the files of a commit whose names match `patterns`; missing ones are
    downloaded.

    Raises the errors of the hub's client, LocalEntryNotFoundError if it is known that one is
    missing offline.
    """
    from huggingface_hub import snapshot_download

    options: dict[str, Any] = {"allow_patterns": list(patterns), "local_files_only": offline}
    return Path(snapshot_download(id, repo_type=kind, revision=commit, **options))


def explain(error: BaseException, source: str, what: str) -> str:
    """The message, with a remedy, for an error about `what` (model, tokenizer, data set) `source`.

    It has no token: the messages of the hub's client do not show it.
    """
    causes = _causes(error)
    for kinds, reason in _reasons(source, what):
        for cause in causes:
            if isinstance(cause, kinds):
                text = reason.replace("{}", first_line(cause))
                return without_passwords(f"The {what} {source} {text}")
    raise AssertionError("the last reason is that of any error")


def _causes(error: BaseException) -> list[BaseException]:
    """The error, and those that led to it."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    return causes


Kinds = type[BaseException] | tuple[type[BaseException], ...]
"""Kinds of errors, as `isinstance` takes them."""


def _reasons(source: str, what: str) -> list[tuple[Kinds, str]]:
    """Kinds of errors and what they mean for the user. The first one counts that fits an error or a
    cause of it.

    `{}` stands for the first line of that error.
    """
    import httpx2
    from huggingface_hub import constants, errors

    folder = "datasets/" if what == "data set" else ""
    page = f"{constants.ENDPOINT}/{folder}{source}"
    return [
        (
            errors.GatedRepoError,
            f"is gated. Accept its terms at {page}, then give your token: {LOGIN}.",
        ),
        (
            errors.RevisionNotFoundError,
            f"has no such revision. Branches, tags and commits: {page}/tree/main.",
        ),
        (
            errors.RepositoryNotFoundError,
            f"is not on the hub ({constants.ENDPOINT}), or private.\n"
            f"Check the spelling; a private one needs {LOGIN}.",
        ),
        (
            errors.HFValidationError,
            "is no hub id. Give a local folder, or owner/name on the hub.",
        ),
        (
            (errors.HfHubHTTPError, httpx2.HTTPError),
            "is not available: {}.\n"
            f"Check the connection and try again. If it needs a token: {LOGIN}.",
        ),
        (
            (errors.LocalEntryNotFoundError, ConnectionError),
            "is not available offline: it is not, or not whole, in the cache.\n"
            "Fetch it while there is a connection: the same command with mode=prefetch "
            "offline=false.",
        ),
        (BaseException, "could not be read: {}."),
    ]
