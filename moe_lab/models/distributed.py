"""Processes of torchrun or `accelerate launch`: their number, and calls in all of them."""

import os
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError

T = TypeVar("T")

LAUNCH = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets besides WORLD_SIZE."""
UNSET = "Start the processes with torchrun, which sets all variables, or unset WORLD_SIZE."


def num_processes() -> int:
    """The number of processes, 1 without a launcher. Raises ConfigError for a WORLD_SIZE that is no
    number."""
    size = os.environ.get("WORLD_SIZE") or "1"
    if not size.isdigit() or int(size) < 1:
        raise ConfigError(f"WORLD_SIZE={size} is no number of processes. {UNSET}")
    return int(size)


def check_variables() -> None:
    """Raise ConfigError where a cluster has left a WORLD_SIZE in the environment without the rest
    of a launch."""
    size = num_processes()
    missing = [name for name in LAUNCH if not os.environ.get(name)]
    if size > 1 and missing:
        raise ConfigError(f"WORLD_SIZE={size} is set, and {', '.join(missing)} not. {UNSET}")


@cache
def sharded() -> bool:
    """Whether `accelerate launch` was started with FSDP.

    Removes that from the environment: transformers shards the model at loading, and accelerate
    would do it again. Raises ConfigError for settings that have no effect then.
    """
    if os.environ.pop("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return False
    if os.environ.get("FSDP_VERSION") == "1" or os.environ.get("FSDP_OFFLOAD_PARAMS") == "true":
        raise ConfigError(
            "FSDP needs fsdp_version: 2 and fsdp_offload_params: false, as "
            "conf/accelerate/fsdp.yaml has."
        )
    return True


def is_split(model: ModelConfig) -> bool:
    """Whether each process computes a part of every layer of this model (tensor parallelism)."""
    return "tp_plan" in model.load


def run_on_all_ranks(call: Callable[[], T]) -> T:
    """Run a call in all processes; called in the first one. Returns its result here.

    The call takes the same steps in all processes, and raises a TrainingError in all of them or in
    none.
    """
    if num_processes() > 1:
        broadcast(call)
    return call()


def broadcast(call: Callable[[], Any] | None) -> None:
    """Send a call to the other processes, which run it; None ends them."""
    import torch.distributed as dist

    dist.broadcast_object_list([call], src=0, device="cpu")
