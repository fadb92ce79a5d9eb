"""`model.experts_per_token`: another top-k than the checkpoint's."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from moe_lab.errors import ConfigError
from moe_lab.routing import family_of_type, supported


def set_experts_per_token(config: Any, count: int) -> None:
    """Set the top-k in a model's configuration. Raises ConfigError for an impossible count."""
    text = config.get_text_config()
    family = family_of_type(text.model_type)
    if family is None:
        raise ConfigError(
            f"model.experts_per_token needs a model of a supported family ({', '.join(supported())})."
        )
    if family.fixed_top_k:
        raise ConfigError(f"model.experts_per_token: {family.name} models cannot have another number.")
    most = family.most_experts_per_token(text)
    if not 1 <= count <= most:
        raise ConfigError(
            f"model.experts_per_token={count}: a token of this model can have 1 to {most} experts of the "
            f"{family.num_experts(text)} in a layer."
        )
    owner, _, attribute = family.top_k.rpartition(".")
    setattr(attrgetter(owner)(text) if owner else text, attribute, count)
