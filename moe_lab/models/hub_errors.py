"""Messages for errors of the hub's clients: what is not available, why, and what to do."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from moe_lab.config.catalog import option_files, read_option, resource_folder
from moe_lab.config.terminal import without_passwords
from moe_lab.config.validators import did_you_mean
from moe_lab.errors import first_line
from moe_lab.models.hub import NotCached, is_offline, unreachable

LOGIN = "HF_TOKEN=<your token> in front of the command, or `hf auth login` once"


def explain(error: Exception, source: str, what: str, offline: bool) -> str:
    """The message for an error about `what` (model, tokenizer, data set) `source`.

    It never contains the token, which the messages of the hub's clients do not show.
    """
    known = known_reason(error, source, what, offline)
    return known or f"The {what} {source} could not be read: {_first_line(error)}"


def known_reason(error: Exception, source: str, what: str, offline: bool) -> str | None:
    """The message if the error, or one of its causes, is of the hub, else None."""
    reasons = [_reason(cause, source, what, offline or is_offline()) for cause in _causes(error)]
    return next((reason for reason in reversed(reasons) if reason), None)


def _reason(error: BaseException, source: str, what: str, offline: bool) -> str | None:
    """The message for one exception of the chain; None if it is not of the hub."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    hub = without_passwords(constants.ENDPOINT)
    page = f"{hub}/{'datasets/' if what == 'data set' else ''}{source}"
    offline = offline or "OfflineModeIsEnabled" in str(error)  # as `datasets` says it
    if isinstance(error, OfflineModeIsEnabled | NotCached) or (offline and type(error) is ConnectionError):
        return _not_cached(error, source, what)
    if offline and isinstance(error, LocalEntryNotFoundError):
        return _not_cached(error, source, what)
    if isinstance(error, HFValidationError):
        return f"{source} is no hub id. The {what} is a local folder, or owner/name on the hub."
    # `datasets` raises its own error without the cause
    gated = type(error).__name__ == "DatasetNotFoundError" and "is a gated dataset" in str(error)
    if isinstance(error, GatedRepoError) or gated:
        return (
            f"The {what} {source} is gated: its owner lets in who has accepted the terms.\n"
            f"Accept them at {page}, then give your token: {LOGIN}."
        )
    if isinstance(error, RevisionNotFoundError):
        return (
            f"The {what} {source} has no such revision.\n"
            f"model.revision takes a branch, tag or commit of {page}/tree/main."
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"There is no {what} {source} on the hub ({hub}), or it is private.{_close(source, what)}\n"
            f"Check the spelling; a private one needs {LOGIN}."
        )
    if isinstance(error, LocalEntryNotFoundError):
        return None  # its cause has the reason
    if isinstance(error, EntryNotFoundError):
        return f"The {what} {source} lacks a file that is needed: {_first_line(error)}\nSee {page}."
    if unreachable(error):
        here = "no folder, not in the cache" if what == "model" else "not in the cache"
        return (
            f"The {what} {source} is {here}, and the hub ({hub}) could not be reached: {_first_line(error)}\n"
            "Check the connection and try again; where there is none, fill the cache elsewhere with mode=prefetch."
        )
    if isinstance(error, HfHubHTTPError):
        return _refused(error.response.status_code, source, what)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        return (
            f"The {what} {source} could not be stored: {error.strerror} ({error.filename or constants.HF_HUB_CACHE}).\n"
            "The same command continues where this one stopped. HF_HOME=<folder> puts the cache elsewhere."
        )
    return None


def _refused(status: int, source: str, what: str) -> str:
    if status in (401, 403):
        return (
            f"The hub refused access to the {what} {source} (status {status}).\n"
            f"Check that your token is valid and may read this repository: {LOGIN}."
        )
    return f"The hub answered with status {status} for the {what} {source}. Try again later."


def _not_cached(error: BaseException, source: str, what: str) -> str:
    reason = _first_line(error) if isinstance(error, NotCached) else "it is not in the cache"
    return (
        f"The {what} {source} is not available offline: {reason}.\n"
        "Fetch it while there is a connection: the same command with mode=prefetch offline=false."
    )


def _close(source: str, what: str) -> str:
    """A hint at the option of conf/model with a similar id."""
    if what != "model":
        return ""
    files = option_files("model", [resource_folder("conf")])
    ids = {
        key.default: name
        for name, file in files.items()
        for key in read_option(file).keys
        if key.name == "path"
    }
    near = did_you_mean(source, ids)
    close = None if source in ids else re.search(r"'(.+)'", near)
    return f" Did you mean model={ids[close[1]]} ({close[1]})?" if close else ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and its causes, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _first_line(error: BaseException) -> str:
    """The first line of an error, without the query strings of URLs, which may contain signatures."""
    return without_passwords(re.sub(r"(https?://[^\s'\"?]+)\?[^\s'\"]*", r"\1", first_line(error)))
