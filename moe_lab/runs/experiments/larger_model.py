"""A plain model of another depth with random weights, whose time and memory are measured."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch

from moe_lab.models.auto_class import auto_class, experts_option
from moe_lab.models.facts import LoadedModel
from moe_lab.models.transformers_internals import experts_of


def of_depth(loaded: LoadedModel, layers: int) -> LoadedModel:
    """The model's architecture with another number of layers and random weights.

    It is on the same device and in the same dtype.
    """
    config = deepcopy(loaded.model.config)
    text = config.get_text_config()
    base_layers = text.num_hidden_layers
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        types = text.layer_types
        text.layer_types = [types[index % base_layers] for index in range(layers)]
    experts = experts_of(text)
    option = experts_option(config, experts) if experts else None
    torch.manual_seed(0)
    with torch.device(loaded.device):
        model = auto_class(config).from_config(
            config, dtype=loaded.model.dtype, experts_implementation=option
        )
    model.generation_config = deepcopy(loaded.model.generation_config)
    return replace(loaded, model=model.eval())


def non_embedding_parameters(model: Any) -> int:
    """The model size of Kaplan et al. (2020): parameters without embedding and output head."""
    excluded: set[int] = set()
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        if module is not None:
            excluded.update(id(parameter) for parameter in module.parameters())
    total = 0
    for parameter in model.parameters():
        if id(parameter) not in excluded:
            total += parameter.numel()
    return total
