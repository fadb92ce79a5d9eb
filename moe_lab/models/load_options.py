"""`model.load={...}`: keywords of transformers' `from_pretrained`, under their own names.

https://huggingface.co/docs/transformers/main_classes/model
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from moe_lab.config.doors import check_name, library_value
from moe_lab.config.library_logs import hide_kernel_messages
from moe_lab.config.paths import user_path
from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, first_line, need_package
from moe_lab.models.distributed import num_processes

PAGE = (
    "https://huggingface.co/docs/transformers/main_classes/model"
    "#transformers.PreTrainedModel.from_pretrained"
)
_OF_HUB = "files of the hub are fetched first. Use model.path= and model.revision="
REFUSED = {
    "adapter_kwargs": "an adapter is model.peft=",
    "adapter_name": "an adapter is model.peft=",
    "allow_all_kernels": "kernels of anybody are code from the hub, which is never run",
    "cache_dir": "it is HF_HUB_CACHE",
    "config": "it is that of model.path=",
    "device_mesh": "it is an object. Use model.load.tp_plan=auto",
    "distributed_config": "it is an object. Use model.load.tp_plan=auto",
    "dtype": "it is a key of the run. Use dtype=",
    "force_download": _OF_HUB,
    "generation_config": "it is that of model.path=. Use gen_kwargs=",
    "gguf_file": "the configuration is that of config.json. Convert the model to safetensors",
    "ignore_mismatched_sizes": "weights of other shapes are refused, with their names",
    "kernel_config": "it is an object",
    "local_files_only": "it is a key of the run. Use offline=",
    "output_loading_info": "missing weights are refused, with their names",
    "pretrained_model_name_or_path": "it is model.path=",
    "proxies": "they are HTTPS_PROXY",
    "state_dict": "it is an object",
    "token": "a secret belongs in the environment: HF_TOKEN",
    "torch_dtype": "it is a key of the run. Use dtype=",
    "tp_size": "it is the number of processes of torchrun",
    "tqdm_class": "it is an object",
    "trust_remote_code": "code of a model is never run",
    "weights_only": "nothing of a file is executed",
}
"""The keywords that are not taken, with the reason."""
SAME_KEYS = ("attn_implementation", "device_map", "experts_implementation", "revision")
"""Keywords that are keys of `model`."""
NEED_DEVICE_MAP = ("max_memory", "offload_buffers", "offload_folder")


def with_load(model: ModelConfig) -> ModelConfig:
    """The model with checked keywords; those that are keys of `model` are these.

    Raises ConfigError for an unknown keyword, a refused one, one without an effect, and one that
    contradicts the key of the same name.
    """
    if not model.load:
        return model
    hints = _hints()
    taken: dict[str, Any] = {}
    same: dict[str, Any] = {}
    for name, value in model.load.items():
        key = f"model.load.{name}"
        check_name(key, keywords(), REFUSED, PAGE, "keyword")
        if name in SAME_KEYS:
            current = getattr(model, name)
            if current not in (None, value):
                raise ConfigError(
                    f"{key}={value} and model.{name}={current} are the same setting. Give one."
                )
            same[name] = value
        else:
            taken[name] = library_value(key, value, hints.get(name, Any))
    if "max_memory" in taken:
        taken["max_memory"] = _by_device(taken["max_memory"])
    if taken.get("use_kernels") is False:  # the default
        del taken["use_kernels"]
    if "subfolder" in taken and model.path is not None and user_path(model.path).is_dir():
        same["path"] = str(Path(model.path, taken.pop("subfolder")))
    checked = replace(model, load=taken, **same)
    for name in NEED_DEVICE_MAP:
        if name in taken and checked.device_map is None:
            raise ConfigError(f"model.load.{name} has no effect without model.device_map=auto.")
    if taken.get("use_kernels"):
        need_package("kernels", "kernels", "model.load.use_kernels=true")
    if "tp_plan" in taken:
        _check_split(checked)
    if "quantization_config" in taken:
        _check_quantization(taken["quantization_config"])
    return checked


def _check_split(model: ModelConfig) -> None:
    """Raise ConfigError for a plan of tensor parallelism that has no effect, or nothing to act
    on."""
    if model.load["tp_plan"] is None or model.device_map is not None:
        raise ConfigError("Give model.load.tp_plan=auto or model.device_map, not both.")
    if num_processes() < 2:
        raise ConfigError(
            "model.load.tp_plan splits the model over processes, and there is one: torchrun "
            "--nproc-per-node 2 -m moe_lab ..."
        )
    if "quantization_config" in model.load:
        raise ConfigError("model.load.tp_plan splits no quantized weights. Leave one of them out.")


@cache
def keywords() -> tuple[str, ...]:
    """The keywords of from_pretrained: those of its signature, and those that its code reads."""
    hide_kernel_messages()
    from transformers import PreTrainedModel

    function = PreTrainedModel.from_pretrained
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            names.append(name)
    read = re.findall(r'kwargs\.pop\("([a-z]\w*)"', inspect.getsource(function))
    return tuple(dict.fromkeys([*names, *read]))


def _by_device(max_memory: Mapping[str, int | str]) -> dict[int | str, int | str]:
    """`max_memory` as accelerate reads it: a GPU by its number.

    Raises ConfigError for a size that it does not read.
    """
    from accelerate.utils.modeling import convert_file_size_to_int

    by_device: dict[int | str, int | str] = {}
    for device, size in max_memory.items():
        try:
            convert_file_size_to_int(size)
        except ValueError as error:
            raise ConfigError(f"model.load.max_memory.{device}: {first_line(error)}.") from error
        by_device[int(device) if device.isdigit() else device] = size
    return by_device


def _hints() -> dict[str, Any]:
    """The types of the keywords in the signature, and of some others by their documentation."""
    return {
        "disable_mmap": bool,
        "fusion_config": dict[str, Any],
        "key_mapping": dict[str, str],
        "max_memory": dict[str, int | str],
        "offload_buffers": bool,
        "offload_folder": str,
        "quantization_config": dict[str, Any],
        "subfolder": str,
        "tp_plan": str | dict[str, str],
        "use_kernels": bool,
        "use_safetensors": bool,
        "variant": str,
    }


def _check_quantization(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for a quantization that transformers does not have, or not here."""
    from transformers.quantizers.auto import AutoHfQuantizer, AutoQuantizationConfig

    from moe_lab.models.facts import LINEAR_ONLY

    method = settings.get("quant_method")
    if method in LINEAR_ONLY.split():
        raise ConfigError(
            f"model.load.quantization_config.quant_method={method}: transformers quantizes linear "
            "layers with it, and experts are fused tensors. Use dtype=bfloat16, or torchao or fp8."
        )
    try:
        config = AutoQuantizationConfig.from_dict(dict(settings))
        AutoHfQuantizer.from_config(config, pre_quantized=False).validate_environment(
            device_map=None, weights_only=True
        )
    except Exception as error:  # of the method's own package, too
        raise ConfigError(
            f"model.load.quantization_config cannot be used here: {first_line(error)}."
        ) from error
