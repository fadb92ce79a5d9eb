"""The part of a model that reads and writes text.

Image-and-text models are asked with text alone. Their towers of images, videos and sounds, and the
projectors from these to the text model, are loaded, and no training changes them.
"""

import re
from typing import Any

from torch import nn

OF_IMAGES = re.compile("vision|visual|image|audio|multi_modal_projector")
"""In names of parameters that read no text."""


def freeze_towers(model: Any) -> None:
    """Let no training change the parameters of an image-and-text model that read no text.

    A model of text alone stays as it is.
    """
    for parameter in tower_parameters(model).values():
        parameter.requires_grad_(False)


def tower_parameters(model: Any) -> dict[str, nn.Parameter]:
    """The parameters by name that read no text; empty for a model of text alone."""
    if not has_towers(model.config):
        return {}
    prefixes = _text_prefixes(model)
    towers = {}
    for name, parameter in model.named_parameters():
        if not name.startswith(prefixes) or OF_IMAGES.search(name):
            towers[name] = parameter
    return towers


def has_towers(config: Any) -> bool:
    """Whether a configuration is that of an image-and-text model."""
    return config.get_text_config() is not config


def forget_images(model: nn.Module) -> None:
    """Let a model forget how far images moved the positions of the texts that it generated last.

    Some image-and-text models keep it (`rope_deltas`), and add it to the positions of the next
    embeddings that they get, even to those of a batch of another size.
    """
    for module in model.modules():
        if hasattr(module, "rope_deltas"):
            module.rope_deltas = None


def tower_modules(model: Any) -> str:
    """An expression that matches the names of an image-and-text model's modules that read no
    text."""
    prefixes = "|".join(re.escape(prefix) for prefix in _text_prefixes(model))
    return rf"(?!({prefixes})).*|.*({OF_IMAGES.pattern}).*"


def _text_prefixes(model: Any) -> tuple[str, ...]:
    """The beginnings of the names of parameters that read or write text."""
    text_modules = [model.get_decoder(), model.get_output_embeddings()]
    prefixes = []
    for name, module in model.named_modules():
        if any(module is text_module for text_module in text_modules):
            prefixes.append(f"{name}.")
    return tuple(prefixes)
