"""The class of transformers that loads a model: of a causal language model, or of an image-and-text
model, which is asked with text alone."""

from typing import Any

from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_MAPPING,
)

from moe_lab.errors import ModelError
from moe_lab.models.transformers_internals import can_set_experts, class_of
from moe_lab.routing import family_of_type
from moe_lab.routing.families import REFUSED_IMAGE_TEXT, image_text_types


def auto_class(config: Any) -> Any:
    """The Auto class that takes a configuration of a model that runs (`check_class`)."""
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    return AutoModelForImageTextToText


def experts_option(config: Any, implementation: str) -> str | dict[str, str] | None:
    """`experts_implementation` of transformers for a model of this configuration.

    None for a family whose experts have a single implementation. Models that take any text model
    (`mistral3`) have no experts of their own; it is then set for their text model.
    """
    if can_set_experts(class_of(auto_class(config), config)):
        return implementation
    text = config.get_text_config()
    if text is config or type(text) not in MODEL_MAPPING:
        return None
    if can_set_experts(class_of(AutoModel, text)):
        return {"text_config": implementation}
    return None


def check_class(config: Any, source: str) -> None:
    """Raise ModelError for a model that is neither a causal language model nor an image-and-text
    model of a family that names it."""
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return
    model_type = config.model_type
    if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise ModelError(
            f"{source} has the model type {model_type}, which is no causal language model of "
            "transformers (AutoModelForCausalLM does not take it).\n"
            "docs/models.md says which models run."
        )
    if model_type in REFUSED_IMAGE_TEXT:
        raise ModelError(
            f"{source} has the model type {model_type}, which does not run: "
            f"{REFUSED_IMAGE_TEXT[model_type]}.\ndocs/models.md says which models run."
        )
    text_type = config.get_text_config().model_type
    family = family_of_type(text_type)
    if family is None or model_type not in family.image_text:
        raise ModelError(
            f"{source} is an image-and-text model of the type {model_type} with a text model of "
            f"the type {text_type}, which does not run. Of these models run "
            f"{', '.join(image_text_types())}.\ndocs/models.md says with which text models."
        )
