"""Where a model comes from: a folder, the hub, or the hub's cache on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

from moe_lab.config import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.experts_per_token import set_experts_per_token

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TINY = Path(__file__).parent / "tiny"
"""The model that comes with the package."""


def model_source(model: ModelConfig) -> str:
    """What transformers loads: a hub id or a folder."""
    return str(Path(model.path).expanduser()) if model.path else str(TINY)


def load_config(model: ModelConfig, *, offline: bool) -> PreTrainedConfig:
    """The model's configuration, with `experts_per_token` applied. Raises ModelError where there is none."""
    source = model_source(model)
    transformers_logging.set_verbosity_error()
    _check_folder(source)
    try:
        config = AutoConfig.from_pretrained(
            source, revision=model.revision or "main", local_files_only=offline
        )
    except StrictDataclassError as error:
        raise ModelError(f"{source}/config.json is not valid: {error.__cause__ or error}") from error
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(explain(error, source, "model", offline)) from error
    if model.experts_per_token is not None:
        set_experts_per_token(config, model.experts_per_token)
    return config


def _check_folder(source: str) -> None:
    path = Path(source)
    if path.is_dir() and not (path / "config.json").is_file():
        raise ModelError(
            f"{source} is no model: it has no config.json. model.path takes a folder in Hugging Face format."
        )
    looks_local = path.is_absolute() or source.startswith(".") or source.count("/") > 1
    if looks_local and not path.is_dir():
        raise ModelError(
            f"There is no folder {source}. model.path takes a local folder or a hub id like owner/name."
        )


def explain(error: Exception, source: str, what: str, offline: bool) -> str:
    """A few lines for a failure of the hub's clients: what could not be had, why, and what to do."""
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    hint = (
        "offline=true uses only what the Hugging Face cache holds."
        if offline
        else "Check the spelling and the connection; gated models need HF_TOKEN. model.path also takes a local folder."
    )
    return f"The {what} {source} could not be read: {first_line}\n{hint}"
