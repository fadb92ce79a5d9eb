"""The language model of `method=c2r`, which counts the routing decisions that the constraint changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from moe_lab.engine.lm import EngineLM
from moe_lab.methods.base import engine_options
from moe_lab.routing import routed
from moe_lab.routing.policies import PartnersOnly

if TYPE_CHECKING:
    from torch import Tensor

    from moe_lab.config.schema import Config
    from moe_lab.models.load import LoadedModel


class ConstrainedLM(EngineLM):
    """An `EngineLM` of a model on which the policy is installed."""

    def __init__(self, model: Any, tokenizer: Any, policy: PartnersOnly, **options: Any):
        super().__init__(model, tokenizer, **options)
        self._policy = policy

    @property
    def cost(self) -> dict[str, int]:
        """`EngineLM.cost` with the number of changed decisions and of all decisions (one per token and layer)."""
        changed, decided = self._policy.decisions
        return super().cost | {"constrained_decisions": changed, "routing_decisions": decided}


@contextmanager
def constrained(model: LoadedModel, allowed_LEE: Tensor, config: Config) -> Iterator[ConstrainedLM]:
    """The LM of the model whose experts are limited to `partners_of` a profile."""
    policy = PartnersOnly(allowed_LEE)
    with routed(model.model, policy):
        yield ConstrainedLM(model.model, model.tokenizer, policy, **engine_options(config))
