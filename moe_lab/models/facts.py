"""Facts about a model from its configuration alone, without weights and modeling code; quantized
checkpoints.

`quantization_config` in a model's configuration names the method. Checkpoints that cannot run are
refused before their weights are fetched. `checks.prove_seam` tests every loaded model and refuses a
fused kernel that bypasses the router.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, ModelError, first_line
from moe_lab.models.adapters import check_adapter
from moe_lab.models.distributed import is_split
from moe_lab.models.source import adapter_folder, load_config, model_commit, model_source
from moe_lab.models.text_part import has_towers
from moe_lab.routing import Family, family_of_type

LINEAR_ONLY = "aqlm auto-round awq bitnet bitsandbytes eetq gptq higgs hqq quanto spqr vptq"
"""Methods that transformers loads into `nn.Linear` modules and nothing else."""


def quantization_of(config: PreTrainedConfig) -> dict[str, Any] | None:
    """The checkpoint's `quantization_config` as a mapping; None without quantization."""
    stored = getattr(config, "quantization_config", None)
    if not stored:
        stored = getattr(config.get_text_config(), "quantization_config", None)
    if stored is None:
        return None
    return dict(stored) if isinstance(stored, dict) else stored.to_dict()


def check_quantization(config: PreTrainedConfig, source: str, moe_layers: int) -> None:
    """Raise ModelError, with a remedy, for a checkpoint that cannot be loaded on this machine."""
    stored = quantization_of(config)
    if stored is None:
        return
    from transformers.quantizers.auto import AutoHfQuantizer  # it imports modeling code

    method = _method(stored)
    try:
        if moe_layers and method in LINEAR_ONLY.split():
            raise ValueError(
                "transformers loads it into linear layers only, and experts are fused tensors"
            )
        options = loading_options(config).get("quantization_config", stored)
        quantizer = AutoHfQuantizer.from_config(options, pre_quantized=True)
        quantizer.validate_environment(device_map=None, weights_only=True)
    except Exception as error:  # of the method's own package, too
        raise ModelError(
            f"{source} is quantized with {method} and cannot run here: {first_line(error)}.\nUse "
            "an unquantized checkpoint: model.device_map=auto spreads it over GPUs, memory and "
            "disk (Mixtral-8x7B takes 93 GB in bfloat16). MXFP4 and FP8 checkpoints run as well."
        ) from error


def loading_options(config: PreTrainedConfig) -> dict[str, Any]:
    """The options of `from_pretrained` for a quantized checkpoint; empty unless it is MXFP4.

    MXFP4 is dequantized: its fused experts would bypass the hooks on the router.
    """
    from transformers import Mxfp4Config

    stored = quantization_of(config)
    if stored is None or _method(stored) != "mxfp4":
        return {}
    kept = stored.get("modules_to_not_convert")
    return {"quantization_config": Mxfp4Config(dequantize=True, modules_to_not_convert=kept)}


def _method(stored: dict[str, Any]) -> str:
    """The method that a `quantization_config` names."""
    method = stored.get("quant_method", "an unnamed method")
    return str(getattr(method, "value", method))


DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What a run needs to know of a model before it is loaded."""

    name: str
    path: str | None
    """Hub id or folder as the user gave it; None for the packaged model."""
    revision: str | None
    commit: str | None
    """Commit of `revision` on the hub; None for a folder."""
    family: str
    """`model_type` of its text model in transformers."""
    dtype: str
    moe_layers: int
    experts: int
    top_k: int
    max_length: int
    """Positions that the model was trained for."""
    most_experts: int | None = None
    """The most experts that a token can have: those of the groups that are chosen together; None:
    all."""
    selection_bias: bool = False
    """Whether it is a design (`models/designs`) with a selection bias."""
    fixed_routing: str | None = None
    """Why no policy may read or change the routing of single tokens; None where one may."""
    rope_by_length: bool = False
    """Whether its rotary embeddings depend on the length of a text."""

    @property
    def routers(self) -> Family | None:
        """The family of its routers; None for a model without any that is supported."""
        return family_of_type(self.family, self.selection_bias)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, in evaluation mode."""

    model: Any
    tokenizer: Any
    facts: ModelFacts
    device: torch.device
    load_seconds: float


def model_facts(model: ModelConfig, *, dtype: str, device: str, offline: bool) -> ModelFacts:
    """The facts of a model. A dense model, or one of an unknown family, has no MoE layers.

    Raises ModelError for a folder without a model, and for a quantized checkpoint that cannot run
    here.
    """
    config = load_config(model, offline=offline)
    if is_split(model) and has_towers(config):
        raise ConfigError(
            f"model.load.tp_plan splits models of text alone, and {config.model_type} reads "
            "images, too. Use model.device_map=auto."
        )
    routing = routing_facts(config)
    check_quantization(config, model_source(model), routing["moe_layers"])
    adapter = adapter_folder(model, offline=offline)
    if adapter is not None:
        check_adapter(model, adapter, quantized=quantization_of(config) is not None)
    return ModelFacts(
        name=model.name,
        path=model.path,
        revision=model.revision,
        commit=model_commit(model, offline=offline),
        dtype=resolve_dtype(dtype, resolve_device(device), config),
        **routing,
    )


def routing_facts(config: Any) -> dict[str, Any]:
    """Fields of `ModelFacts` that are read of a model's configuration alone, by name.

    These are family, max_length, selection_bias, rope_by_length, moe_layers, experts, top_k,
    most_experts and fixed_routing. A model without a supported router has 0 MoE layers, experts and
    `top_k`. Raises ModelError for a model whose longest input has no token.
    """
    text = config.get_text_config()
    longest = getattr(text, "max_position_embeddings", 2048)
    if longest < 1:
        raise ModelError(
            f"max_position_embeddings={longest} of the model's config.json: it must be the longest "
            "input in tokens."
        )
    facts = {
        "family": text.model_type,
        "max_length": longest,
        "selection_bias": getattr(text, "selection_bias", False) is True,
        "rope_by_length": _rope_by_length(text),
    }
    family = family_of_type(text.model_type)
    if family is None:
        no_routers = {"moe_layers": 0, "experts": 0, "top_k": 0}
        return facts | no_routers | {"most_experts": None, "fixed_routing": None}
    return facts | {
        "moe_layers": family.moe_layers(text),
        "experts": family.num_experts(text),
        "top_k": family.experts_per_token(text),
        "most_experts": family.most_experts_per_token(text),
        "fixed_routing": family.fixed(text),
    }


def _rope_by_length(config: Any) -> bool:
    """Whether a configuration names a rope type that depends on a text's length: for all layers, or
    for a kind of them.

    It needs no weights. The engine asks the model itself (`engine/forward/rotary.py`).
    """
    return any(_depends_on_length(settings) for settings in _rope_settings(config))


def without_rope_lengths(config: Any) -> Any:
    """A copy with the default type in place of rope types that depend on a text's length.

    It is for models on the meta device, where no position can be compared with a limit. No shape
    depends on the type.
    """
    copied = deepcopy(config)
    for settings in _rope_settings(copied.get_text_config()):
        if _depends_on_length(settings):
            settings["rope_type"] = "default"
    return copied


def _rope_settings(config: Any) -> list[dict[str, Any]]:
    """The settings of a configuration's rotary embeddings, of all layers and of each kind of
    layers; empty without any."""
    parameters = getattr(config, "rope_parameters", None)
    if parameters is None:
        return []
    of_kinds = [settings for settings in parameters.values() if isinstance(settings, dict)]
    return [parameters, *of_kinds]


def _depends_on_length(settings: dict[str, Any]) -> bool:
    rope_type = str(settings.get("rope_type"))
    return rope_type == "longrope" or "dynamic" in rope_type


def resolve_device(device: str) -> torch.device:
    """`auto`: the first CUDA GPU, else the CPU. Raises ConfigError for a device that torch does not
    know or see."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        if torch.get_device_module(resolved.type).is_available():
            return resolved
        missing = "GPU" if resolved.type == "cuda" else f"device of type {resolved.type}"
    except (RuntimeError, AttributeError):
        missing = "such device"
    raise ConfigError(
        f"device={device}: torch {torch.__version__} sees no {missing} here. Use device=cpu."
    )


def leave_out_cudnn_attention() -> None:
    """From now on attention of this process does not use cuDNN, which makes a plan for every new
    shape.

    Every prompt and every step has another length. On an H200 a plan took 37 ms and a step 21 ms;
    128 requests with prompts of 50 to 900 tokens took 4.2 s instead of 0.7 s.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def resolve_dtype(dtype: str, device: torch.device, config: Any) -> str:
    """`auto`: float32 on the CPU, elsewhere the dtype of the checkpoint. Raises ConfigError if it
    does not name one."""
    if dtype != "auto":
        if dtype not in DTYPES:
            raise ConfigError(f"dtype={dtype}: choose one of auto, {', '.join(DTYPES)}.")
        return dtype
    if device.type == "cpu":
        return "float32"
    stored = config.dtype
    if stored is None:  # image-and-text models may name it in their text configuration alone
        stored = config.get_text_config().dtype
    if stored is None:
        raise ConfigError(
            "dtype=auto: config.json of the model names no dtype. Use dtype=bfloat16."
        )
    return str(stored).removeprefix("torch.")
