"""`model.experts_per_token`."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from moe_lab.errors import ConfigError
from moe_lab.routing import family_of_type, supported


def set_experts_per_token(config: Any, count: int) -> None:
    """Change a model's configuration. Raises ConfigError for a count that it cannot have."""
    text = config.get_text_config()
    family = family_of_type(text.model_type)
    if family is None:
        raise ConfigError(
            f"model.experts_per_token needs a model of a supported family ({', '.join(supported())})."
        )
    if not 1 <= count <= family.num_experts(text):
        raise ConfigError(
            f"model.experts_per_token={count}: the model has {family.num_experts(text)} experts per layer."
        )
    owner, _, attribute = family.top_k.rpartition(".")
    setattr(attrgetter(owner)(text) if owner else text, attribute, count)
