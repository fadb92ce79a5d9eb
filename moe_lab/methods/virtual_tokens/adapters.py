"""peft's two kinds of virtual tokens around a model. The model is restored afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.methods.virtual_tokens.past import prefix_past, soft_prompt_past


def peft_config(kind: str, virtual_tokens: int) -> Any:
    """peft's settings: a soft prompt starts as the embeddings of random tokens, a prefix as standard normal numbers."""
    from peft import PrefixTuningConfig, PromptTuningConfig, PromptTuningInit, TaskType

    if kind == "soft-prompt":
        return PromptTuningConfig(
            task_type=TaskType.CAUSAL_LM,
            num_virtual_tokens=virtual_tokens,
            prompt_tuning_init=PromptTuningInit.SAMPLE_VOCAB,
        )
    return PrefixTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=virtual_tokens)


@contextmanager
def with_adapter(model: Any, kind: str, virtual_tokens: int, seed: int) -> Iterator[Any]:
    """A PeftModel around the frozen model, its adapter drawn from the seed; afterwards the model is as it was."""
    from peft import get_peft_model

    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FutureWarning
            )  # peft asks what transformers will no longer answer
            torch.manual_seed(seed)
            wrapped = get_peft_model(model, peft_config(kind, virtual_tokens))
        yield wrapped
    finally:
        for parameter, flag in flags:
            parameter.requires_grad = flag


def stored_past(folder: Path, model: Any) -> KVCache:
    """The keys and values of an adapter in peft's format (`adapter_model.safetensors`, `adapter_config.json`)."""
    from peft import PeftConfig, PeftType
    from safetensors.torch import load_file

    config: Any = PeftConfig.from_pretrained(str(folder))
    virtual = load_file(folder / "adapter_model.safetensors")["prompt_embeddings"]
    if config.peft_type == PeftType.PREFIX_TUNING:
        return prefix_past(model, virtual, config.num_attention_heads)
    return soft_prompt_past(model, virtual)
