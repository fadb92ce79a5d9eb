"""Processes of torchrun or `accelerate launch`: how many there are, and calls that all of them make at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from moe_lab.errors import ConfigError

T = TypeVar("T")


def num_processes() -> int:
    """How many processes were started together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@cache
def sharded() -> bool:
    """Whether `accelerate launch` was asked for FSDP.

    That is taken out of the environment, for it is transformers that shards the model, when it loads it: accelerate
    would do it again. Raises ConfigError for settings that have no effect then.
    """
    if os.environ.pop("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return False
    if os.environ.get("FSDP_VERSION") == "1" or os.environ.get("FSDP_OFFLOAD_PARAMS") == "true":
        raise ConfigError(
            "FSDP needs fsdp_version: 2 and fsdp_offload_params: false, as conf/accelerate/fsdp.yaml has."
        )
    return True


def run_on_all_ranks(call: Callable[[], T]) -> T:
    """Call it in all processes at once, which have it from this one; what it returns here.

    What is called takes the same steps everywhere, and raises a TrainingError in all of them or in none.
    """
    if num_processes() > 1:
        broadcast(call)
    return call()


def broadcast(call: Callable[[], Any] | None) -> None:
    """Let the other processes make a call; None ends them."""
    import torch.distributed as dist

    dist.broadcast_object_list([call], src=0, device="cpu")
