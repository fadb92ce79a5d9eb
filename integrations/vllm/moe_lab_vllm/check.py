"""What RoE refuses of an engine's configuration, and the two classes that it adds to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import vllm
from vllm.model_executor.models.config import VerifyAndUpdateConfig

from moe_lab_vllm import ARCHITECTURES
from moe_lab_vllm.options import Options

VERSION = "0.32."
REQUESTS = "moe_lab_vllm.requests:Requests"
MOST_TOKENS = 256**2
"""Of a pass: the clean cache numbers them with two digits (`clean.py`)."""
SCHEDULER = "moe_lab_vllm.scheduler.SchedulerWithScratchBlocks"


def checked(own: type[VerifyAndUpdateConfig] | None) -> type[VerifyAndUpdateConfig]:
    """A configuration hook of vLLM: the architecture's own one, then the check of this package."""
    if own is not None and issubclass(own, _Checked):
        return own
    return type("CheckedConfig", (_Checked, own or VerifyAndUpdateConfig), {})


class _Checked:
    @classmethod
    def verify_and_update_config(cls, vllm_config: Any) -> None:
        super().verify_and_update_config(vllm_config)  # type: ignore[misc]
        options = Options.of(vllm_config)
        if options is None:
            return
        for problem in _problems(options, vllm_config):
            raise ValueError(f"RoE in vLLM: {problem}.")
        model = vllm_config.model_config
        model.logits_processors = [*(model.logits_processors or ()), REQUESTS]
        vllm_config.scheduler_config.async_scheduling = False
        if options.cache == "clean":
            vllm_config.scheduler_config.scheduler_cls = SCHEDULER


def _problems(options: Options, config: Any) -> Iterator[str]:
    """Each as "what is given, and the remedy", the first one first."""
    model, parallel = config.model_config, config.parallel_config
    if not vllm.__version__.startswith(VERSION):
        yield (
            f"vLLM {vllm.__version__} is installed, and this package is made for {VERSION}*; "
            "install that version"
        )
    if model.architecture not in ARCHITECTURES:
        yield f"{model.architecture} has no rule here; it runs {', '.join(ARCHITECTURES)}"
    if config.use_v2_model_runner:
        yield "vLLM's second model runner is not supported; set VLLM_USE_V2_MODEL_RUNNER=0"
    if not model.enforce_eager:
        yield "compiled models and CUDA graphs are not supported; set enforce_eager=True"
    for name in ("tensor", "pipeline", "data", "prefill_context", "decode_context"):
        if (size := getattr(parallel, f"{name}_parallel_size")) != 1:
            yield f"{name}_parallel_size={size} is not supported; set it to 1"
    if parallel.enable_expert_parallel or parallel.enable_eplb:
        yield (
            "expert parallelism is not supported; leave enable_expert_parallel and enable_eplb out"
        )
    if config.lora_config is not None:
        yield "LoRA is not supported; leave enable_lora out, or merge the adapter into the model"
    if config.speculative_config is not None:
        yield "speculative decoding is not supported; leave speculative_config out"
    if model.quantization is not None:
        yield (
            f"quantization={model.quantization} is not tested; "
            "use a checkpoint that is not quantized"
        )
    if config.cache_config.cache_dtype not in ("auto", "float32", "bfloat16", "float16"):
        yield f"kv_cache_dtype={config.cache_config.cache_dtype} is not tested; leave it out"
    if config.kv_transfer_config is not None:
        yield "KV transfer is not supported; leave kv_transfer_config out"
    if (tokens := config.scheduler_config.max_num_batched_tokens) > MOST_TOKENS:
        yield f"max_num_batched_tokens={tokens} is not supported; set it to at most {MOST_TOKENS}"
    if config.scheduler_config.scheduler_cls is not None:
        yield "scheduler_cls is not supported, since RoE has its own; leave it out"
    if config.scheduler_config.async_scheduling:
        yield "async_scheduling=True is not tested; leave it out"
    if options.cache == "standard" and config.cache_config.enable_prefix_caching:
        yield (
            "cache=standard does not allow prefix caching, because the keys and values of a sample "
            "depend on the whole prompt; set enable_prefix_caching=False, or cache=clean"
        )
