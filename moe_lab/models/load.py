"""Loading a model with its tokenizer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from moe_lab.config import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.experts import NAME as WEIGHTS_FIRST
from moe_lab.models.facts import ModelFacts, model_facts, resolve_device
from moe_lab.models.hub import load_config, model_folder, model_source
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.routing import find_routers


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, in evaluation mode."""

    model: Any
    tokenizer: Any
    facts: ModelFacts
    device: torch.device
    load_seconds: float


def load_model(model: ModelConfig, *, dtype: str, device: str, offline: bool) -> LoadedModel:
    """Load weights and tokenizer; `trust_remote_code` is off. Raises ModelError where that fails."""
    place = resolve_device(device)
    folder = model_folder(model, offline=offline, weights=True)
    start = time.perf_counter()
    facts = model_facts(model, dtype=dtype, device=device, offline=offline)
    experts = model.experts_implementation
    if experts is None and facts.moe_layers and place.type == "cpu":
        experts = WEIGHTS_FIRST
    options = {"experts_implementation": experts} if experts else {}
    try:
        loaded, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=load_config(model, offline=offline),
            dtype=getattr(torch, facts.dtype),
            local_files_only=True,
            ignore_mismatched_sizes=True,  # reported below, with the names
            output_loading_info=True,
            **options,
        )
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"The weights of {model_source(model)} could not be loaded: {first_line}") from error
    _check_complete(report, model_source(model))
    loaded.to(place).eval()
    if len(find_routers(loaded)) != facts.moe_layers:
        raise ModelError(
            f"{model_source(model)} should have {facts.moe_layers} MoE layers by its configuration, but "
            f"{len(find_routers(loaded))} routers were found: these weights or this version of transformers differ."
        )
    tokenizer = load_tokenizer(model, offline=offline)
    return LoadedModel(loaded, tokenizer, facts, place, time.perf_counter() - start)


def _check_complete(report: dict[str, Any], source: str) -> None:
    """transformers fills what a checkpoint lacks with random numbers: such a model is refused."""
    missing = sorted(map(str, report["missing_keys"]))
    misshapen = sorted(
        str(key[0]) if isinstance(key, tuple) else str(key) for key in report["mismatched_keys"]
    )
    for names, what in ((missing, "lacks"), (misshapen, "has in another shape")):
        if names:
            raise ModelError(
                f"The checkpoint {source} {what} {len(names)} of the model's parameters, e.g. {names[0]}.\n"
                "It is damaged or belongs to another configuration: fetch or save it again."
            )
