"""Loading a model with its tokenizer, and where its weights go: one device, several, or split
layers.

transformers and accelerate place the weights on their device as they are read, without a second
copy.
"""

import time
import weakref
from contextlib import nullcontext
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig
from transformers.distributed import DistributedConfig
from transformers.quantizers.auto import AutoQuantizationConfig

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, ModelError, first_line, reading
from moe_lab.models.adapters import attached, check_fit, merged
from moe_lab.models.auto_class import auto_class, experts_option
from moe_lab.models.checks import (
    DAMAGED,
    check_complete,
    check_pass,
    check_vocabulary,
    check_weights,
    prove_seam,
)
from moe_lab.models.distributed import is_split, num_processes
from moe_lab.models.experts import NAME as WEIGHTS_FIRST
from moe_lab.models.experts import avoid_grouped_products
from moe_lab.models.facts import (
    LoadedModel,
    ModelFacts,
    leave_out_cudnn_attention,
    loading_options,
    model_facts,
    quantization_of,
    resolve_device,
)
from moe_lab.models.source import NO_CODE, adapter_folder, load_config, model_folder, model_source
from moe_lab.models.text_part import freeze_towers
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.models.transformers_internals import attention_of, reading_once
from moe_lab.routing import find_routers

ELSEWHERE = ("subfolder", "tp_plan")
"""Keywords of `model.load` that are in the folder (`model_folder`) and the placement."""


def load_model(
    model: ModelConfig, *, dtype: str, device: str, offline: bool, shard: bool = False
) -> LoadedModel:
    """Load weights and tokenizer, without `trust_remote_code`. Raises ModelError if that fails.

    Args:
        shard: whether each process of a training gets a part of every weight (FSDP).
    """
    leave_out_cudnn_attention()
    place = resolve_device(device)
    source = model_source(model)
    facts = model_facts(model, dtype=dtype, device=device, offline=offline)
    config = load_config(model, offline=offline)
    adapter = adapter_folder(model, offline=offline)
    if adapter is not None:
        if shard:
            raise ConfigError("model.peft needs whole weights, and FSDP splits them. Use DDP.")
        check_fit(config, adapter, str(model.peft))
    folder = model_folder(model, offline=offline, weights=True)
    _check_generation_config(folder)
    start = time.perf_counter()
    disk = TemporaryDirectory(prefix="moe_lab-offload-")
    options = placement(model, config, place, disk, shard) | loading_options(config)
    options |= {name: value for name, value in model.load.items() if name not in ELSEWHERE}
    if "quantization_config" in model.load:
        options["quantization_config"] = AutoQuantizationConfig.from_dict(
            dict(model.load["quantization_config"])
        )
    experts = _experts_implementation(model, config, facts, place)
    if experts is not None:
        options["experts_implementation"] = experts
    loaded = _read_weights(model, folder, config, facts.dtype, place, options)
    avoid_grouped_products(loaded, model.experts_implementation)
    loaded = loaded.eval()
    freeze_towers(loaded)
    if adapter is not None:
        with_layers = merged if model.merge_adapter else attached
        loaded = with_layers(loaded, adapter, str(model.peft))
        if (adapter / "generation_config.json").is_file():  # of an adapter that is trained here
            loaded.generation_config = GenerationConfig.from_pretrained(adapter)
    weakref.finalize(loaded, disk.cleanup)
    if next(loaded.parameters()).is_meta:
        raise ModelError(
            "model.device_map=auto put all weights on disk: free memory for the embeddings."
        )
    place = _input_device(loaded, place)
    routers = len(find_routers(loaded))
    if routers != facts.moe_layers:
        raise ModelError(
            f"{source}: config.json names {facts.moe_layers} MoE layers, the weights have "
            f"{routers} routers."
        )
    check_weights(loaded, source)
    is_unusual = quantization_of(config) or model.device_map or model.load
    if facts.moe_layers and not facts.fixed_routing and is_unusual:
        prove_seam(loaded, place, source)
    if not shard:  # a training checks its own losses
        check_pass(loaded, place, source)
    tokenizer = load_tokenizer(model, offline=offline)
    check_vocabulary(tokenizer, loaded, model.tokenizer or source)
    return LoadedModel(loaded, tokenizer, facts, place, time.perf_counter() - start)


def _check_generation_config(folder: Path) -> None:
    """Raise ModelError for a damaged generation_config.json, which transformers would ignore."""
    file = folder / "generation_config.json"
    if file.is_file():
        with reading(file, "Correct or delete it.", raises=ModelError):
            GenerationConfig.from_pretrained(folder, local_files_only=True)


def _experts_implementation(
    model: ModelConfig, config: PreTrainedConfig, facts: ModelFacts, device: torch.device
) -> str | dict[str, str] | None:
    """The implementation of experts to load the model with; None: transformers' default.

    Raises ConfigError for `model.experts_implementation` of a family with a single one.
    """
    given = model.experts_implementation
    if not facts.moe_layers:
        return None
    option = experts_option(config, given or WEIGHTS_FIRST)
    if option is None:
        if given:
            raise ConfigError(
                f"model.experts_implementation: {facts.family} computes its experts in one way "
                "only. Leave it out."
            )
        return None
    if given or device.type == "cpu":
        return option
    return None


def _read_weights(
    model: ModelConfig,
    folder: Path,
    config: PreTrainedConfig,
    dtype: str,
    device: torch.device,
    options: dict[str, Any],
) -> Any:
    """The model in a folder. Raises ModelError for weights that cannot be read, or that do not fit
    the configuration.

    Args:
        options: further options of `from_pretrained`.
    """
    source = model_source(model)
    try:
        with reading_once() if device.type == "cpu" else nullcontext():
            loaded, report = auto_class(config).from_pretrained(
                folder,
                config=config,
                dtype=getattr(torch, dtype),
                attn_implementation=model.attn_implementation or attention_of(config),
                local_files_only=True,
                ignore_mismatched_sizes=True,  # reported below, with the names
                weights_only=True,  # nothing of a .bin file is executed
                output_loading_info=True,
                **NO_CODE,
                **options,
            )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a damaged file or configuration leads to any exception
        if isinstance(error, UnpicklingError):
            raise ModelError(
                f"The weights of {source} are damaged, or hold more than tensors, of which nothing "
                "is executed. Take safetensors of the model, or save its tensors alone."
            ) from error
        if "CONVERSION" in str(error):  # transformers could not fuse the experts
            raise ModelError(
                f"Experts of {source} are missing, or of other shapes. {DAMAGED}"
            ) from error
        raise ModelError(
            f"The weights of {source} could not be loaded: {first_line(error)}."
        ) from error
    check_complete(report, source, config)
    return loaded


def _input_device(loaded: Any, device: torch.device) -> torch.device:
    """The device of inputs: with a device map the first one that it computes on, else `device`."""
    devices = list(getattr(loaded, "hf_device_map", {}).values())
    if not devices:
        return device
    for mapped in devices:
        if mapped not in ("cpu", "disk"):
            return torch.device(mapped)
    return torch.device("cpu")


def placement(
    model: ModelConfig,
    config: PreTrainedConfig,
    device: torch.device,
    disk: TemporaryDirectory,
    shard: bool,
) -> dict[str, Any]:
    """The options of `from_pretrained` that place weights; none for a model on the CPU.

    Args:
        shard: as in `load_model`.
        disk: takes weights that fit nowhere else, with a device map.
    """
    if shard:
        return {"distributed_config": DistributedConfig(fsdp_size=num_processes())}
    if is_split(model):
        plan = DistributedConfig(tp_size=num_processes(), tp_plan=model.load["tp_plan"])
        return {"distributed_config": plan}
    if model.device_map:
        return {"device_map": model.device_map, "offload_folder": disk.name}
    return {} if device.type == "cpu" else {"device_map": device}
