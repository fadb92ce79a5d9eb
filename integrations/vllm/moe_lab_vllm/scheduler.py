"""A scheduler that does not use the last blocks of the KV cache: routing samples write there.

The model knows all blocks. The scheduler knows all but the last ones. Prefix caching and preemption
never touch the last ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig

from moe_lab_vllm.options import Options

MOST = 256
"""Scratch blocks, if n is not larger: more samples in one pass are not faster."""


def scratch_blocks(options: Options, num_blocks: int) -> int:
    """How many of a KV cache's last blocks the noisy samples use: at least one for each sample."""
    return max(options.n - 1, min(MOST, num_blocks // 8))


class SchedulerWithScratchBlocks(Scheduler):
    """vLLM's own scheduler over all blocks but the scratch blocks."""

    def __init__(self, vllm_config: Any, kv_cache_config: KVCacheConfig, **arguments: Any):
        options = Options.of(vllm_config)
        assert options is not None
        blocks, longest = kv_cache_config.num_blocks, vllm_config.model_config.max_model_len
        left = blocks - scratch_blocks(options, blocks)
        needed = -(-longest // vllm_config.cache_config.block_size) + 1
        if left < needed:
            raise ValueError(
                f"RoE in vLLM: n={options.n} leaves {left} of {blocks} KV blocks for texts, "
                f"and a text of max_model_len={longest} tokens needs {needed}.\n"
                "Give more memory for the KV cache, or lower max_model_len or n."
            )
        super().__init__(vllm_config, replace(kv_cache_config, num_blocks=left), **arguments)
