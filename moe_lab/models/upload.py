"""Uploading a trained model or adapter to the Hugging Face hub: one commit with its files and a model card."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_lab.errors import ConfigError, ResultsError, first_line
from moe_lab.models.files import ADAPTER
from moe_lab.models.hub import LOGIN, is_offline

KEY = "method.push_to_hub=true"


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A folder to upload, and where to."""

    folder: Path
    repository: str
    """`owner/name`; a name alone is one of the owner of the token."""
    private: bool | None
    """None: public, or as the organization has it. Only for a new repository."""


def check_upload(upload: Upload, *, offline: bool) -> None:
    """Raise ConfigError for an upload that cannot succeed: offline, without a token, or to an impossible name."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if offline or is_offline():
        raise ConfigError(
            f"{KEY} needs the network, which offline=true or HF_HUB_OFFLINE=1 forbids. Leave one out."
        )
    try:
        validate_repo_id(upload.repository)
    except HFValidationError as error:
        raise ConfigError(
            f"method.hub_model_id={upload.repository} is no name of a repository. Give owner/name."
        ) from error
    if not get_token():
        raise ConfigError(f"{KEY} needs a token that may write: {LOGIN}.")


def push(upload: Upload, card: Callable[[str], str]) -> str:
    """Upload a folder and its card as one commit; unchanged files are not sent again. Returns the repository's URL.

    Args:
        card: the content of README.md, of the repository's whole name.

    Raises ResultsError if this fails. The folder is only read.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    if not upload.folder.is_dir():
        raise ResultsError(
            f"{KEY}: {upload.folder} is gone. The same command with rerun=true trains it again."
        )
    api = HfApi()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            url = api.create_repo(upload.repository, private=upload.private, exist_ok=True)
            files: dict[str, Any] = {"README.md": card(url.repo_id).encode()}
            for file in (path for path in sorted(upload.folder.rglob("*")) if path.is_file()):
                name = file.relative_to(upload.folder).as_posix()
                files[name] = _for_others(file) if name == ADAPTER else str(file)
            api.create_commit(
                url.repo_id,
                [CommitOperationAdd(name, content) for name, content in files.items()],
                commit_message="Upload by moe_lab",
            )
    except Exception as error:  # the clients of the hub and of its storage raise any exception
        raise ResultsError(
            f"{KEY}: {upload.folder} could not be pushed to {upload.repository}: {_reason(error)}.\n"
            "It is kept there, and the results are stored. The same command pushes it again."
        ) from error
    return str(url)


def _for_others(file: Path) -> bytes:
    """An adapter's configuration without the path of a base model that is a folder of this machine."""
    content = json.loads(file.read_text(encoding="utf-8"))
    base = Path(str(content.get("base_model_name_or_path")))
    if base.is_absolute():
        content["base_model_name_or_path"] = base.name
    return json.dumps(content, indent=2, sort_keys=True).encode()


def _reason(error: Exception) -> str:
    from huggingface_hub.errors import HfHubHTTPError

    cause: BaseException = error
    while not isinstance(cause, HfHubHTTPError) and cause.__cause__ is not None:
        cause = cause.__cause__
    if not isinstance(cause, HfHubHTTPError):
        return first_line(error)
    status = cause.response.status_code
    hint = f", the token may not write there ({LOGIN})" if status in (401, 403) else ""
    return f"the hub answered with status {status}{hint}"
