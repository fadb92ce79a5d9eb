"""Names that users of other tools type: what to type here instead, or why there is nothing."""

from __future__ import annotations

from dataclasses import fields

from moe_lab.config.schema import GROUP_CONFIGS, Config
from moe_lab.errors import ConfigError

_ADAPTER = (
    "Use model.peft=<adapter folder or hub id>: base and methods on the merged adapter (docs/models.md)."
)
_LORA = f"To train one: method=finetune-freeze method.lora.r=8 (docs/finetuning.md).\n{_ADAPTER}"
_FUSED = (
    "bitsandbytes quantizes linear layers, and the experts of transformers 5 are fused tensors.\n"
    "Use dtype=bfloat16, an MXFP4 or FP8 checkpoint, or for a dense model a checkpoint that is stored quantized "
    "(docs/hardware.md)."
)
_STORED = "Nothing to set: answers are stored as they come, and the same command continues."
INSTEAD = {
    "adapter": _ADAPTER,
    "attn_implementation": "Use model.attn_implementation=sdpa or eager.",
    "cache_requests": _STORED,
    "confirm_run_unsafe_code": "Nothing to set: generated code runs in a sandbox (docs/tasks.md).",
    "dtype": "The dtype is a key of its own: dtype=bfloat16.",
    "hydra/launcher": "launcher=local launcher.workers=4 runs a grid in 4 processes (--help launcher=).",
    "hydra/sweeper": "Use -m with several values for a grid, or tuning=tpe for a search.",
    "include_path": "Use task.include_path=<folder>.",
    "load_in_4bit": _FUSED,
    "load_in_8bit": _FUSED,
    "log_samples": "Nothing to set: samples_<task>.jsonl is always written, next to results.json.",
    "lora": _LORA,
    "model_args": "Use model.path=<hub id or folder>, dtype= and the other keys of --help model=.",
    "model_name_or_path": "Use model.path=<hub id or folder>.",
    "output_path": "Use output_dir=<folder>.",
    "peft": _ADAPTER,
    "pretrained": "Use model.path=<hub id or folder>.",
    "tasks": "Use task=gsm8k, or task=lm_eval task.name=[piqa,sciq] for any tasks of lm-eval.",
    "torch_dtype": "Use dtype=bfloat16.",
    "trust_remote_code": "Code from the hub is never run. Use a model whose type transformers has.",
    "use_cache": _STORED,
}
"""By flag, key or last part of a key."""


def refuse_foreign(argument: str) -> None:
    """Raise ConfigError for a flag or key of lm-eval, transformers or Hydra that this command does not have."""
    name = argument.lstrip("-+").partition("=")[0]
    if argument.startswith("--"):
        name = name.replace("-", "_")
        if name in INSTEAD:
            raise ConfigError(f"{argument}: no flag here. {INSTEAD[name]}")
        if name in _top_level():
            raise ConfigError(f"{argument}: keys have no dashes. Use {name}=<value>.")
    elif name not in _known() and not name.startswith("method."):
        leaf = name if "/" in name else name.rpartition(".")[2]
        if leaf in INSTEAD:
            raise ConfigError(f"{name}: no key here. {INSTEAD[leaf]}")


def _top_level() -> set[str]:
    return {one.name for one in fields(Config)} | set(GROUP_CONFIGS) | {"method"}


def _known() -> set[str]:
    own = {f"{group}.{one.name}" for group, cls in GROUP_CONFIGS.items() for one in fields(cls)}
    return own | _top_level()
