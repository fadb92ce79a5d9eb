"""What a collaboration constraint needs of a model, checked without weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moe_lab.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from moe_lab.config.schema import Config
    from moe_lab.models.facts import ModelFacts


def check_partners(count: int, facts: ModelFacts) -> None:
    """Raise ConfigError for a number of partners that the model's experts cannot have."""
    least, most = facts.top_k - 1, facts.experts - 1
    if not least <= count <= most:
        raise ConfigError(
            f"method.partners={count}: this model takes {facts.top_k} of {facts.experts} experts, so that each "
            f"needs {least} partners at least, and has {most} at most."
        )


def check_groups(config: Config, facts: ModelFacts) -> None:
    """Raise ConfigError for routers that choose within groups of experts, which partners would have to fit into."""
    from moe_lab.models.source import load_config

    architecture = load_config(config.model, offline=config.offline).get_text_config()
    if (getattr(architecture, "n_group", None) or 1) > 1:
        raise ConfigError(
            f"method={config.method.name}: this model ({facts.family}) chooses experts within groups of them, which is "
            "a constraint of its own, so experts cannot be limited to partners. Use a model that chooses among all "
            "experts."
        )


def check_profile(path: str, pairs_LEE: Tensor, facts: ModelFacts) -> None:
    """Raise ConfigError for the counts of another model."""
    shape = (facts.moe_layers, facts.experts, facts.experts)
    if tuple(pairs_LEE.shape) != shape:
        raise ConfigError(
            f"method.profile={path} is of another model: {tuple(pairs_LEE.shape)} layers and experts, and this one "
            f"has {shape}."
        )
