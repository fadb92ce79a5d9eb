"""Loading a model with its tokenizer."""

from __future__ import annotations

import time
import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, ModelError
from moe_lab.models.check_files import (
    check_generation,
    check_generation_file,
    check_vocabulary,
    first_line,
)
from moe_lab.models.check_numbers import check_pass, check_weights
from moe_lab.models.check_weights import check_complete, check_experts
from moe_lab.models.experts import NAME as WEIGHTS_FIRST
from moe_lab.models.facts import ModelFacts, model_facts, resolve_device
from moe_lab.models.foreign_code import NO_CODE
from moe_lab.models.low_memory_load import reading_once
from moe_lab.models.placement import main_device, placement
from moe_lab.models.probe import prove_seam
from moe_lab.models.quantized import loading_options, quantization_of
from moe_lab.models.source import load_config, model_folder, model_source
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.routing import find_routers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, in evaluation mode."""

    model: Any
    tokenizer: Any
    facts: ModelFacts
    device: torch.device
    load_seconds: float


def load_model(
    model: ModelConfig, *, dtype: str, device: str, offline: bool, shard: bool = False
) -> LoadedModel:
    """Load weights and tokenizer, without `trust_remote_code`. Raises ModelError if that fails.

    Args:
        shard: whether each process of a training gets a part of every weight (FSDP).
    """
    place = resolve_device(device)
    facts = model_facts(model, dtype=dtype, device=device, offline=offline)
    folder = model_folder(model, offline=offline, weights=True)
    check_generation_file(folder)
    start = time.perf_counter()
    config = load_config(model, offline=offline)
    disk = TemporaryDirectory(prefix="moe_lab-offload-")
    with reading_once() if place.type == "cpu" else nullcontext():
        loaded = _load_weights(
            folder,
            config,
            facts,
            _experts(model, config, facts, place) | placement(model, config, place, disk, shard),
        )
    weakref.finalize(loaded, disk.cleanup)
    place = main_device(loaded, place)
    _check_routers(loaded, facts, model_source(model))
    check_weights(loaded, model_source(model))
    touched = quantization_of(config) or model.device_map or model.tp_plan
    if facts.moe_layers and not facts.fixed_routing and touched:
        prove_seam(loaded, place, model_source(model))
    if not shard:  # a training checks its own losses
        check_pass(loaded, place, model_source(model))
    check_generation(loaded, model_source(model))
    tokenizer = load_tokenizer(model, offline=offline)
    check_vocabulary(tokenizer, loaded, model.tokenizer or model_source(model))
    return LoadedModel(loaded, tokenizer, facts, place, time.perf_counter() - start)


def _experts(
    model: ModelConfig, config: PreTrainedConfig, facts: ModelFacts, place: torch.device
) -> dict[str, str]:
    """The experts implementation, as an option of `from_pretrained`.

    Raises ConfigError for a choice on a model that has a single implementation.
    """
    implementation = model.experts_implementation
    chosen = (
        facts.moe_layers
        and AutoModelForCausalLM._model_mapping[type(config)]._can_set_experts_implementation()
    )
    if implementation and facts.moe_layers and not chosen:
        raise ConfigError(
            f"model.experts_implementation={implementation}: models of type {facts.family} compute their experts in "
            "one way only. Leave it out."
        )
    if implementation:
        return {"experts_implementation": implementation}
    return {"experts_implementation": WEIGHTS_FIRST} if chosen and place.type == "cpu" else {}


def _load_weights(
    folder: Path, config: PreTrainedConfig, facts: ModelFacts, options: dict[str, Any]
) -> PreTrainedModel:
    source = facts.path or str(folder)
    try:
        loaded, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, facts.dtype),
            local_files_only=True,
            ignore_mismatched_sizes=True,  # reported below, with the names
            output_loading_info=True,
            **NO_CODE,
            **loading_options(config),
            **options,
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a damaged file or configuration leads to any
        if "CONVERSION" in str(error):  # as transformers says that experts do not fit together
            check_experts(folder, source)
        raise ModelError(f"The weights of {source} could not be loaded: {first_line(error)}.") from error
    check_complete(report, folder, source, config)
    return loaded.eval()


def _check_routers(loaded: PreTrainedModel, facts: ModelFacts, source: str) -> None:
    routers = len(find_routers(loaded))
    if routers != facts.moe_layers:
        raise ModelError(
            f"{source} should have {facts.moe_layers} MoE layers by its configuration, but {routers} routers were "
            "found: these weights or this version of transformers differ."
        )
