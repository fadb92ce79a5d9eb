"""Where weights go: one device, several (`model.device_map`), or parts of every layer (`model.tp_plan`, FSDP).

transformers and accelerate do all of it. Weights go to their device as they are read: there is no second copy.
"""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from moe_lab.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from moe_lab.config.schema import ModelConfig


def placement(
    model: ModelConfig,
    config: PreTrainedConfig,
    device: torch.device,
    disk: TemporaryDirectory,
    shard: bool,
) -> dict[str, Any]:
    """What `from_pretrained` has to be told; `disk` is for weights that fit nowhere else.

    Raises ConfigError for `tp_plan` without torchrun, ModelError where transformers has no plan for the model.
    """
    if shard:
        from transformers.distributed import DistributedConfig

        return {"distributed_config": DistributedConfig(fsdp_size=int(os.environ["WORLD_SIZE"]))}
    if model.tp_plan:
        return {"distributed_config": _tensor_parallel(model.tp_plan, config)}
    if model.device_map:
        return {"device_map": model.device_map, "offload_folder": disk.name}
    return {} if device.type == "cpu" else {"device_map": device}


def _tensor_parallel(plan: str, config: PreTrainedConfig) -> Any:
    from transformers.distributed import DistributedConfig

    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes < 2:
        raise ConfigError(
            f"model.tp_plan={plan} splits a model over the processes of torchrun, and this is a single one. Use "
            "model.device_map=auto for several GPUs in one process."
        )
    if not config.get_text_config().base_model_tp_plan:
        raise ModelError(
            f"model.tp_plan={plan}: transformers has no plan for splitting a {config.model_type}, so every process "
            "would hold all of it. Use model.device_map=auto."
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
