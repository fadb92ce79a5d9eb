"""How many experts a configuration has, and `model.experts_per_token`."""

from __future__ import annotations

from typing import Any

from moe_lab.errors import ConfigError
from moe_lab.routing import family_of_type, supported


def num_experts(config: Any) -> int:
    """Routed experts per MoE layer of a supported family's configuration."""
    return getattr(config, "num_local_experts", None) or config.num_experts


def set_experts_per_token(config: Any, count: int) -> None:
    """Change a model's configuration. Raises ConfigError for a count that it cannot have."""
    if not family_of_type(config.model_type):
        raise ConfigError(
            f"model.experts_per_token needs a model of a supported family ({', '.join(supported())})."
        )
    if not 1 <= count <= num_experts(config):
        raise ConfigError(
            f"model.experts_per_token={count}: the model has {num_experts(config)} experts per layer."
        )
    config.num_experts_per_tok = count
