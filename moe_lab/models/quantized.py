"""Quantized checkpoints: which ones run, and how they are loaded. The others are refused before weights are fetched.

`quantization_config` in a model's configuration names the method. `probe.py` tests every loaded model and refuses a
fused kernel that bypasses the router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moe_lab.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

LINEAR_ONLY = frozenset(
    (
        "aqlm",
        "auto-round",
        "awq",
        "bitnet",
        "bitsandbytes",
        "eetq",
        "gptq",
        "higgs",
        "hqq",
        "quanto",
        "spqr",
        "vptq",
    )
)
"""Methods that transformers loads into `nn.Linear` modules and nothing else."""


def quantization_of(config: PreTrainedConfig) -> dict[str, Any] | None:
    """The checkpoint's `quantization_config` as a mapping; None without quantization."""
    stored = getattr(config, "quantization_config", None) or getattr(
        config.get_text_config(), "quantization_config", None
    )
    if stored is None:
        return None
    return dict(stored if isinstance(stored, dict) else stored.to_dict())


def check_quantization(config: PreTrainedConfig, source: str, moe_layers: int) -> None:
    """Raise ModelError, with a remedy, for a checkpoint that cannot be loaded on this machine."""
    stored = quantization_of(config)
    if stored is None:
        return
    method = _method(stored)
    if moe_layers and method in LINEAR_ONLY:
        raise ModelError(
            f"{source} is quantized with {method}, which transformers loads into linear layers only: the experts of "
            f"{config.model_type} are fused tensors, and would be left without weights.\n{REMEDY}"
        )
    try:
        quantizer = _quantizer(stored)
    except (ImportError, RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(
            f"{source} is quantized with {method} and cannot run here: {reason}\n{REMEDY}"
        ) from error
    if quantizer is None:
        raise ModelError(f"{source} is quantized with {method}, which transformers does not know.\n{REMEDY}")


REMEDY = (
    "Use an unquantized checkpoint: model.device_map=auto spreads it over GPUs, memory and disk (Mixtral-8x7B takes 93 "
    "GB in bfloat16). MXFP4 and FP8 checkpoints run as well."
)


def runs_quantized(config: PreTrainedConfig) -> bool:
    """Whether weights stay quantized in memory. Call `check_quantization` first."""
    stored = quantization_of(config)
    return stored is not None and not getattr(_quantizer(stored).quantization_config, "dequantize", False)


def _quantizer(stored: dict[str, Any]) -> Any:
    """transformers' quantizer, which dequantizes if this machine requires it; None for an unknown method.

    Raises transformers' own errors for a checkpoint that cannot be loaded here.
    """
    from transformers.quantizers.auto import AutoHfQuantizer

    if not AutoHfQuantizer.supports_quant_method(stored):
        return None
    quantizer = AutoHfQuantizer.from_config(_loading(stored) or stored, pre_quantized=True)
    quantizer.validate_environment(device_map=None, weights_only=True)
    return quantizer


def loading_options(config: PreTrainedConfig) -> dict[str, Any]:
    """The options of `from_pretrained` for a quantized checkpoint."""
    stored = quantization_of(config)
    quantization = _loading(stored) if stored else None
    return {"quantization_config": quantization} if quantization else {}


def _loading(stored: dict[str, Any]) -> Any:
    """The configuration that dequantizes MXFP4, whose fused experts would bypass the hooks on the router."""
    if _method(stored) != "mxfp4":
        return None
    from transformers import Mxfp4Config

    return Mxfp4Config(dequantize=True, modules_to_not_convert=stored.get("modules_to_not_convert"))


def _method(stored: dict[str, Any]) -> str:
    if stored.get("load_in_4bit") or stored.get("load_in_8bit"):
        return "bitsandbytes"
    method = stored.get("quant_method", "an unnamed method")
    return str(getattr(method, "value", method))
