"""What a model is, told from its configuration alone: no weights are read, no modeling code is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

from moe_lab.config import ModelConfig
from moe_lab.errors import ConfigError, ModelError
from moe_lab.routing import family_of_type, supported

TINY = Path(__file__).parent / "tiny"
"""The model that comes with the package."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A model as a run sees it."""

    name: str
    path: str | None
    """Hub id or folder as the user gave it; None for the packaged model."""
    revision: str | None
    commit: str | None
    """Commit on the hub that `revision` stood for; None for a folder."""
    family: str
    """`model_type` of transformers."""
    dtype: str
    moe_layers: int
    experts: int
    top_k: int
    max_length: int
    """Positions the model was made for."""


def model_source(model: ModelConfig) -> str:
    """What transformers loads: a hub id or a folder."""
    return str(Path(model.path).expanduser()) if model.path else str(TINY)


def model_facts(model: ModelConfig, *, dtype: str, device: str, offline: bool) -> ModelFacts:
    """Read the configuration; a dense model, or one of an unknown family, has no MoE layers.

    Raises ModelError for a folder that holds no model.
    """
    config = load_config(model, offline=offline)
    text = config.get_text_config()
    family = family_of_type(config.model_type)
    return ModelFacts(
        name=model.name,
        path=model.path,
        revision=model.revision,
        commit=getattr(config, "_commit_hash", None),
        family=config.model_type,
        dtype=resolve_dtype(dtype, resolve_device(device), config),
        moe_layers=family.moe_layers(config) if family else 0,
        experts=_num_experts(config) if family else 0,
        top_k=config.num_experts_per_tok if family else 0,
        max_length=getattr(text, "max_position_embeddings", 2048),
    )


def load_config(model: ModelConfig, *, offline: bool) -> Any:
    """The model's configuration, with `experts_per_token` applied."""
    source = model_source(model)
    transformers_logging.set_verbosity_error()
    _check_folder(source)
    try:
        config = AutoConfig.from_pretrained(
            source, revision=model.revision or "main", local_files_only=offline
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(_no_model(source, offline, error)) from error
    if model.experts_per_token is not None:
        _set_experts_per_token(config, model.experts_per_token)
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


def _no_model(source: str, offline: bool, error: Exception) -> str:
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    hint = (
        "offline=true uses only what the Hugging Face cache holds."
        if offline
        else "Check the spelling and the connection; gated models need HF_TOKEN. model.path also takes a local folder."
    )
    return f"The model {source} could not be read: {first_line}\n{hint}"


def _num_experts(config: Any) -> int:
    return getattr(config, "num_local_experts", None) or config.num_experts


def _set_experts_per_token(config: Any, count: int) -> None:
    if not family_of_type(config.model_type):
        raise ConfigError(
            f"model.experts_per_token needs a model of a supported family ({', '.join(supported())})."
        )
    if not 1 <= count <= _num_experts(config):
        raise ConfigError(
            f"model.experts_per_token={count}: the model has {_num_experts(config)} experts per layer."
        )
    config.num_experts_per_tok = count


def resolve_device(device: str) -> torch.device:
    """`auto`: the first GPU, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device={device}: unknown. Use auto, cpu, cuda or cuda:0.") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={device}: torch sees no GPU here. Use device=cpu.")
    return resolved


def resolve_dtype(dtype: str, device: torch.device, config: Any) -> str:
    """`auto`: float32 on the CPU, elsewhere the dtype of the checkpoint."""
    if dtype == "auto":
        stored = config.dtype or torch.float32
        return "float32" if device.type == "cpu" else str(stored).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype={dtype}: choose one of auto, {', '.join(_DTYPES)}.")
    return dtype
