"""Facts about a model from its configuration alone, without weights and modeling code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, ModelError
from moe_lab.models.quantized import check_quantization
from moe_lab.models.source import load_config, model_commit, model_source
from moe_lab.routing import Family, family_of_type

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What a run needs to know of a model before it is loaded."""

    name: str
    path: str | None
    """Hub id or folder as the user gave it; None for the packaged model."""
    revision: str | None
    commit: str | None
    """Commit on the hub that `revision` stood for; None for a folder."""
    family: str
    """`model_type` of its text model in transformers."""
    dtype: str
    moe_layers: int
    experts: int
    top_k: int
    max_length: int
    """Positions that the model was trained for."""
    selection_bias: bool = False
    """Whether it is a design (`models/designs`) with a selection bias."""
    fixed_routing: str | None = None
    """Why no policy may read or change the routing of single tokens; None where one may."""

    @property
    def routers(self) -> Family | None:
        """The family of its routers; None for a model without any that is supported."""
        return family_of_type(self.family, self.selection_bias)


def model_facts(model: ModelConfig, *, dtype: str, device: str, offline: bool) -> ModelFacts:
    """The facts of a model. A dense model, or one of an unknown family, has no MoE layers.

    Raises ModelError for a folder without a model, and for a quantized checkpoint that cannot run here.
    """
    config = load_config(model, offline=offline)
    routing = routing_facts(config)
    check_quantization(config, model_source(model), routing["moe_layers"])
    if routing["moe_layers"] and not 1 <= routing["top_k"] <= routing["experts"]:
        raise ModelError(
            f"{model_source(model)} chooses {routing['top_k']} of {routing['experts']} experts by its config.json, "
            "which is not possible. Save or copy the model again."
        )
    return ModelFacts(
        name=model.name,
        path=model.path,
        revision=model.revision,
        commit=model_commit(model, offline=offline),
        dtype=resolve_dtype(dtype, resolve_device(device), config),
        **routing,
    )


def routing_facts(config: Any) -> dict[str, Any]:
    """The facts that are read of a model's configuration alone."""
    text = config.get_text_config()
    family = family_of_type(text.model_type)
    return {
        "family": text.model_type,
        "moe_layers": family.moe_layers(text) if family else 0,
        "experts": family.num_experts(text) if family else 0,
        "top_k": family.experts_per_token(text) if family else 0,
        "max_length": getattr(text, "max_position_embeddings", 2048),
        "selection_bias": getattr(text, "selection_bias", False) is True,
        "fixed_routing": family.fixed(text) if family else None,
    }


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
