"""The placement of weights: one device, several (`model.device_map`), or split layers (`model.tp_plan`, FSDP).

transformers and accelerate place the weights on their device as they are read, without a second copy.
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
    """The options of `from_pretrained` that place weights; `disk` takes weights that fit nowhere else.

    Raises ConfigError for `tp_plan` without torchrun, ModelError if transformers has no plan for the model.
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


def main_device(loaded: PreTrainedModel, requested: torch.device) -> torch.device:
    """The device of inputs: the requested one, or the first that a device map computes on.

    Raises ModelError if all weights are on disk, including the embeddings.
    """
    places = getattr(loaded, "hf_device_map", {}).values()
    if next(loaded.parameters()).device.type == "meta":
        raise ModelError(
            "model.device_map=auto put all weights on disk: free memory for at least the embeddings."
        )
    computing = [torch.device(place) for place in places if place not in ("cpu", "disk")]
    return computing[0] if computing else torch.device("cpu") if places else requested
