"""A plain model of another depth with random weights, to measure the time and memory of a larger model."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moe_lab.models.load import LoadedModel


def scaled_depth(layers: int, ratio: float) -> int:
    """The number of layers of a model that is `ratio` times as large; at least one."""
    return max(1, round(layers * ratio))


def of_depth(loaded: LoadedModel, layers: int) -> LoadedModel:
    """The model's architecture with another number of layers and random weights, on its device, in its dtype."""
    import torch
    from transformers import AutoModelForCausalLM

    config = deepcopy(loaded.model.config)
    own = config.num_hidden_layers
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[index % own] for index in range(layers)]
    torch.manual_seed(0)
    with torch.device(loaded.device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=loaded.model.dtype, experts_implementation=config._experts_implementation
        )
    model.generation_config = deepcopy(loaded.model.generation_config)
    return replace(loaded, model=model.eval())


def non_embedding_parameters(model: Any) -> int:
    """The model size of Kaplan et al. (2020): parameters without the embedding and the output head."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    excluded = {id(parameter) for end in ends if end is not None for parameter in end.parameters()}
    return sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in excluded)
