"""Processes of torchrun or `accelerate launch`: their number, and calls in all of them."""

import os
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from moe_lab.errors import ConfigError

T = TypeVar("T")


def num_processes() -> int:
    """The number of processes, 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@cache
def sharded() -> bool:
    """Whether `accelerate launch` was started with FSDP.

    Removes that from the environment: transformers shards the model at loading, and accelerate would do it again.
    Raises ConfigError for settings that have no effect then.
    """
    if os.environ.pop("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return False
    if os.environ.get("FSDP_VERSION") == "1" or os.environ.get("FSDP_OFFLOAD_PARAMS") == "true":
        raise ConfigError(
            "FSDP needs fsdp_version: 2 and fsdp_offload_params: false, as conf/accelerate/fsdp.yaml has."
        )
    return True


def run_on_all_ranks(call: Callable[[], T]) -> T:
    """Run a call in all processes; called in the first one. Returns its result here.

    The call takes the same steps in all processes, and raises a TrainingError in all of them or in none.
    """
    if num_processes() > 1:
        broadcast(call)
    return call()


def broadcast(call: Callable[[], Any] | None) -> None:
    """Send a call to the other processes, which run it; None ends them."""
    import torch.distributed as dist

    dist.broadcast_object_list([call], src=0, device="cpu")
