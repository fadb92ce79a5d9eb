"""Where weights go: one device, several (`model.device_map`), or parts of every layer (`model.tp_plan`).

transformers and accelerate do all of it. Weights go to their device as they are read: there is no second copy.
"""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from moe_lab.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from moe_lab.config import ModelConfig


def placement(model: ModelConfig, device: torch.device, disk: TemporaryDirectory) -> dict[str, Any]:
    """What `from_pretrained` has to be told; `disk` is for weights that fit nowhere else.

    Raises ConfigError for `tp_plan` without torchrun.
    """
    if model.tp_plan:
        return {"distributed_config": _tensor_parallel(model.tp_plan)}
    if model.device_map:
        return {"device_map": model.device_map, "offload_folder": disk.name}
    return {} if device.type == "cpu" else {"device_map": device}


def _tensor_parallel(plan: str) -> Any:
    from transformers.distributed import DistributedConfig

    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes < 2:
        raise ConfigError(
            f"model.tp_plan={plan} splits a model over the processes of torchrun, and this is a single one. Use "
            "model.device_map=auto for several GPUs in one process."
        )
    return DistributedConfig(tp_plan=plan, tp_size=processes)


def main_device(loaded: PreTrainedModel, asked: torch.device) -> torch.device:
    """Where inputs go: the device asked for, or the first one that a device map computes on.

    Raises ModelError where not even the embeddings found a place in memory.
    """
    places = getattr(loaded, "hf_device_map", {}).values()
    if next(loaded.parameters()).device.type == "meta":
        raise ModelError(
            "model.device_map=auto put all weights on disk: free memory for at least the embeddings."
        )
    computing = [torch.device(place) for place in places if place not in ("cpu", "disk")]
    return computing[0] if computing else torch.device("cpu") if places else asked
