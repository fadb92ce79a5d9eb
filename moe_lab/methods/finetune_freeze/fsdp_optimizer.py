"""The optimizer state of a model that FSDP shards. Each process writes and reads its own part of a checkpoint.

transformers 5.23 shards a model when it loads it and saves its weights whole, but refuses to store its optimizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

OPTIMIZER = "optimizer_{rank}.pt"


def save_optimizer(optimizer: Any, scheduler: Any, folder: Path, rank: int) -> None:
    """Write the shards of this process, and the state that all processes share, with the scheduler."""
    state = optimizer.state_dict()
    parts = {
        number: {key: _local(value) for key, value in entries.items()}
        for number, entries in state["state"].items()
    }
    whole = {"optimizer": {**state, "state": parts}, "scheduler": scheduler.state_dict()}
    torch.save(whole, folder / OPTIMIZER.format(rank=rank))


def load_optimizer(optimizer: Any, scheduler: Any, folder: Path, rank: int) -> None:
    """Read the shards back, for the same parameters and number of processes."""
    stored = torch.load(folder / OPTIMIZER.format(rank=rank), map_location="cpu", weights_only=True)
    state = stored["optimizer"]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    whole = {
        number: {key: _like(parameters[number], value) for key, value in entries.items()}
        for number, entries in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": whole})
    scheduler.load_state_dict(stored["scheduler"])


def _local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def _like(parameter: nn.Parameter, value: Tensor) -> Tensor:
    """A part as a shard of what belongs to a parameter; a number, the step, as it is."""
    if not isinstance(parameter, DTensor) or value.dim() == 0:
        return value
    return DTensor.from_local(
        value.to(parameter.device),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
