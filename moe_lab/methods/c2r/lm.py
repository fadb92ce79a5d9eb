"""An `EngineLM` that counts how often a routing policy changed a decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moe_lab.engine.lm import EngineLM
from moe_lab.routing.partners import PartnersOnly


class ConstrainedLM(EngineLM):
    """An `EngineLM` for a model on which the policy is installed."""

    def __init__(self, model: Any, tokenizer: Any, policy: PartnersOnly, **options: Any):
        super().__init__(model, tokenizer, **options)
        self._policy = policy

    @property
    def cost(self) -> dict[str, int]:
        """As `EngineLM.cost`, with the decisions (a token in a layer) that were changed, and all of them."""
        changed, decided = self._policy.decisions
        return super().cost | {"constrained_decisions": changed, "routing_decisions": decided}


def changed_fraction(counters: Mapping[str, int]) -> float | None:
    """Of all decisions in `ConstrainedLM.cost`, those that the constraint changed; None without a decision."""
    decisions = counters.get("routing_decisions", 0)
    return counters.get("constrained_decisions", 0) / decisions if decisions else None
