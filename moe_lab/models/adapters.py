"""Adapters in peft's format: of a model (`model.peft`), and as checkpoints of a training.

peft ignores tensors of an adapter that match nothing, with a warning at most. Therefore names and
shapes are compared first, without weights, with those that the adapter's configuration gives an
empty model.
"""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedConfig

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, ModelError, reading
from moe_lab.models.auto_class import auto_class
from moe_lab.models.hub import ADAPTER

ADAPTER_TENSORS = "adapter_model.safetensors"
HUB_ID = re.compile(r"[^/.]+/[^/]+")


def check_adapter(model: ModelConfig, folder: Path, quantized: bool) -> None:
    """Check an adapter by its files' names and its configuration, without its weights.

    Raises ConfigError for a model that no adapter can be merged into (on several devices, or
    quantized), and ModelError for a folder without an adapter, one that names code, and one that
    was trained on another model.
    """
    if model.device_map or quantized:
        remedy = "leave model.device_map out"
        if quantized:
            remedy = "use a checkpoint that is not quantized"
        raise ConfigError(
            f"model.peft={model.peft} is merged into the weights on one device: {remedy}."
        )
    for name in (ADAPTER, ADAPTER_TENSORS):
        if not (folder / name).is_file():
            raise ModelError(
                f"model.peft={model.peft} is no adapter in peft's format: it has no {name}."
            )
    with reading(f"model.peft={model.peft}", raises=ModelError):
        content = json.loads((folder / ADAPTER).read_bytes())
        if content.get("megatron_config"):  # peft imports the module that it names
            raise ValueError("megatron_config names code, which is never run")
        base = content.get("base_model_name_or_path")
        # folders may hold the same model, so only two hub ids are compared
        are_hub_ids = HUB_ID.fullmatch(str(base)) and HUB_ID.fullmatch(str(model.path))
        if are_hub_ids and base != model.path:
            raise ValueError(f"it was trained on {base}. Use model.path={base}")


def check_fit(config: PreTrainedConfig, folder: Path, source: str) -> None:
    """Raise ModelError for an adapter whose tensors are not those that the model would get. Loads
    no weights."""
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict

    with (
        reading(f"model.peft={source}", raises=ModelError, says="does not fit the model"),
        torch.device("meta"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        with safe_open(folder / ADAPTER_TENSORS, "pt") as stored:
            shapes = {name: stored.get_slice(name).get_shape() for name in stored.offset_keys()}
        empty: Any = auto_class(config).from_config(config)
        wrapped = get_peft_model(empty, PeftConfig.from_pretrained(folder), low_cpu_mem_usage=True)
        state = get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    expected = {name: list(tensor.shape) for name, tensor in state.items()}
    unfit = []
    for name in shapes | expected:
        if shapes.get(name) != expected.get(name):
            unfit.append(name)
    if unfit:
        name = min(unfit)
        raise ModelError(
            f"model.peft={source} does not fit the model: {name} has the shape "
            f"{shapes.get(name, 'none')} in the adapter, and {expected.get(name, 'none')} in the "
            f"model ({len(unfit)} of {len(shapes)} tensors).\n"
            "Experts of transformers 5 are fused tensors: an adapter of single experts does not "
            "match them."
        )


def merged(model: Any, folder: Path, source: str) -> Any:
    """The model with the adapter merged into its weights. Raises ModelError if it has values that
    are no numbers."""
    from peft import PeftModel

    with warnings.catch_warnings(), reading(f"model.peft={source}", raises=ModelError):
        warnings.simplefilter("ignore")
        wrapped = PeftModel.from_pretrained(model, str(folder), local_files_only=True)
        return wrapped.merge_and_unload(safe_merge=True).eval()


def attached(model: Any, folder: Path, source: str) -> Any:
    """The model with the layers of the adapter next to its own. Raises ModelError for an adapter
    that peft cannot read."""
    from peft import PeftModel

    with warnings.catch_warnings(), reading(f"model.peft={source}", raises=ModelError):
        warnings.simplefilter("ignore")
        wrapped = PeftModel.from_pretrained(model, str(folder), local_files_only=True)
        return wrapped.eval().get_base_model()


def save_adapter(wrapped: Any, folder: Path) -> None:
    """Save the adapter of a PeftModel. The same adapter is saved as the same bytes."""
    settings = wrapped.peft_config[wrapped.active_adapter]
    for key in ("target_modules", "target_parameters"):
        if isinstance(getattr(settings, key, None), set):  # its order differs between processes
            setattr(settings, key, sorted(getattr(settings, key)))
    # by default peft asks the hub for the vocabulary of the base model
    wrapped.save_pretrained(str(folder), save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # a form to fill in


def load_adapter(wrapped: Any, folder: Path) -> None:
    """Read what `save_adapter` wrote into a PeftModel with the same adapter. Raises ModelError if
    it is another one."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import load_file

    stored = load_file(folder / ADAPTER_TENSORS)
    expected = get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    different = stored.keys() ^ expected.keys()
    if different:
        raise ModelError(f"{folder} holds another adapter: {min(different)} differs.")
    set_peft_model_state_dict(wrapped, stored)
