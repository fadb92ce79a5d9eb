"""How many experts a token may take, and how many it took: for methods that change their number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from moe_lab.errors import ConfigError

if TYPE_CHECKING:
    from moe_lab.models.facts import ModelFacts


def most_experts(facts: ModelFacts) -> int:
    """The most experts that a token of the model can take."""
    return facts.most_experts or facts.experts


def check_count(key: str, count: int, facts: ModelFacts) -> None:
    """Raise ConfigError for a number of experts that a token of the model cannot take."""
    if facts.routers and facts.routers.fixed_top_k:
        raise ConfigError(
            f"method.{key}={count}: {facts.routers.name} models cannot have another number of experts. "
            "Use method=base."
        )
    if not 1 <= count <= most_experts(facts):
        raise ConfigError(
            f"method.{key}={count}: a token of this model can have 1 to {most_experts(facts)} experts of the "
            f"{facts.experts} in a layer."
        )


def experts_per_token(counters: Mapping[str, int]) -> float | None:
    """The mean number of experts of a token in a layer, from `CountingLM.cost`; None without a decision."""
    decisions = counters.get("routing_decisions", 0)
    return counters.get("chosen_experts", 0) / decisions if decisions else None
