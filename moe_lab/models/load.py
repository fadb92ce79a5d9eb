"""Loading a model with its tokenizer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from moe_lab.config import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.experts import NAME as WEIGHTS_FIRST
from moe_lab.models.facts import ModelFacts, load_config, model_facts, model_source, resolve_device
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
    start = time.perf_counter()
    place = resolve_device(device)
    facts = model_facts(model, dtype=dtype, device=device, offline=offline)
    experts = model.experts_implementation
    if experts is None and facts.moe_layers and place.type == "cpu":
        experts = WEIGHTS_FIRST
    options = {"experts_implementation": experts} if experts else {}
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            model_source(model),
            config=load_config(model, offline=offline),
            revision=model.revision or "main",
            dtype=getattr(torch, facts.dtype),
            local_files_only=offline,
            **options,
        )
    except (OSError, ValueError) as error:
        raise ModelError(f"The weights of {model_source(model)} could not be loaded: {error}") from error
    loaded.to(place).eval()
    if len(find_routers(loaded)) != facts.moe_layers:
        raise ModelError(
            f"{model_source(model)} should have {facts.moe_layers} MoE layers by its configuration, but "
            f"{len(find_routers(loaded))} routers were found: these weights or this version of transformers differ."
        )
    tokenizer = load_tokenizer(model, offline=offline)
    return LoadedModel(loaded, tokenizer, facts, place, time.perf_counter() - start)
