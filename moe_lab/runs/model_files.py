"""What is read of a configuration's model without weights, once in a command."""

from typing import Any

from moe_lab.config.schema import Config
from moe_lab.models.facts import ModelFacts, model_facts
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.tasks.loading import once


def facts_of(config: Config) -> ModelFacts:
    """The facts of the model: its family, layers, experts, ... Raises ModelError."""
    settings: dict[str, Any] = {
        "dtype": config.dtype,
        "device": config.device,
        "offline": config.offline,
    }
    key = f"facts {config.model} {settings}"
    return once(key, lambda: model_facts(config.model, **settings))


def tokenizer_of(config: Config) -> Any:
    """The model's tokenizer. Raises ModelError."""
    key = f"tokenizer {config.model} {config.offline}"
    return once(key, lambda: load_tokenizer(config.model, offline=config.offline))
