"""Loading a model with its tokenizer, and where its weights go: one device, several, or split layers.

transformers and accelerate place the weights on their device as they are read, without a second copy.
"""

from __future__ import annotations

import os
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
from moe_lab.errors import ConfigError, ModelError, first_line
from moe_lab.models.adapters import check_fit, merged
from moe_lab.models.checks import (
    check_complete,
    check_experts,
    check_generation,
    check_pass,
    check_vocabulary,
    check_weights,
    prove_seam,
)
from moe_lab.models.experts import NAME as WEIGHTS_FIRST
from moe_lab.models.facts import (
    ModelFacts,
    attention_options,
    loading_options,
    model_facts,
    quantization_of,
    resolve_device,
)
from moe_lab.models.files import NO_CODE, check_generation_file
from moe_lab.models.source import adapter_folder, load_config, model_folder, model_source
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.models.transformers_internals import can_set_experts, reading_once
from moe_lab.routing import find_routers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from moe_lab.config.schema import ModelConfig


def placement(
    model: ModelConfig, config: PreTrainedConfig, device: torch.device, disk: TemporaryDirectory, shard: bool
) -> dict[str, Any]:
    """The options of `from_pretrained` that place weights; `disk` takes weights that fit nowhere else.

    Raises ConfigError for `tp_plan` without torchrun, ModelError if transformers has no plan for the model.
    """
    if shard:
        from transformers.distributed import DistributedConfig

        return {"distributed_config": DistributedConfig(fsdp_size=int(os.environ["WORLD_SIZE"]))}
    if model.tp_plan:
        return {"distributed_config": _tensor_parallel(model.tp_plan, config)}
    if model.device_map:
        return {"device_map": model.device_map, "offload_folder": disk.name}
    return {} if device.type == "cpu" else {"device_map": device}


def _tensor_parallel(plan: str, config: PreTrainedConfig) -> Any:
    from transformers.distributed import DistributedConfig

    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes < 2:
        raise ConfigError(
            f"model.tp_plan={plan} splits a model over the processes of torchrun, and this is a single one. Use "
            "model.device_map=auto for several GPUs in one process."
        )
    if not config.get_text_config().base_model_tp_plan:
        raise ModelError(
            f"model.tp_plan={plan}: transformers has no plan for splitting a {config.model_type}, so every process "
            "would hold all of it. Use model.device_map=auto."
        )
    return DistributedConfig(tp_plan=plan, tp_size=processes)


def main_device(loaded: PreTrainedModel, requested: torch.device) -> torch.device:
    """The device of inputs: the requested one, or the first that a device map computes on.

    Raises ModelError if all weights are on disk, including the embeddings.
    """
    places = getattr(loaded, "hf_device_map", {}).values()
    if next(loaded.parameters()).device.type == "meta":
        raise ModelError(
            "model.device_map=auto put all weights on disk: free memory for at least the embeddings."
        )
    computing = [torch.device(place) for place in places if place not in ("cpu", "disk")]
    return computing[0] if computing else torch.device("cpu") if places else requested


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
    config = load_config(model, offline=offline)
    adapter = _adapter(model, config, offline, shard)
    folder = model_folder(model, offline=offline, weights=True)
    check_generation_file(folder)
    start = time.perf_counter()
    disk = TemporaryDirectory(prefix="moe_lab-offload-")
    with reading_once() if place.type == "cpu" else nullcontext():
        loaded = _load_weights(
            folder,
            config,
            facts,
            _experts(model, config, facts, place)
            | attention_options(model, config)
            | placement(model, config, place, disk, shard),
        )
    if adapter is not None:
        loaded = merged(loaded, adapter, str(model.peft))
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


def _adapter(model: ModelConfig, config: PreTrainedConfig, offline: bool, shard: bool) -> Path | None:
    """The folder of the adapter, which fits the model. Raises ModelError if it does not, ConfigError with FSDP."""
    folder = adapter_folder(model, offline=offline)
    if folder is not None:
        if shard:
            raise ConfigError(
                "model.peft is merged into whole weights, which FSDP splits. Use DDP (docs/finetuning.md)."
            )
        check_fit(config, folder, str(model.peft))
    return folder


def _experts(
    model: ModelConfig, config: PreTrainedConfig, facts: ModelFacts, place: torch.device
) -> dict[str, str]:
    """The experts implementation, as an option of `from_pretrained`.

    Raises ConfigError for a choice on a model that has a single implementation.
    """
    implementation = model.experts_implementation
    chosen = facts.moe_layers and can_set_experts(config)
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
    except Exception as error:  # a damaged file or configuration leads to any exception
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
