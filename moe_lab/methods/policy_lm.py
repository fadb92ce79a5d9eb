"""The language model of methods that install one policy on the model, which counts the decisions that it changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from moe_lab.engine.lm import EngineLM
from moe_lab.methods.base import engine_options
from moe_lab.routing import Router, Routing, routed

if TYPE_CHECKING:
    from moe_lab.config.schema import Config
    from moe_lab.models.load import LoadedModel


class CountingPolicy(Protocol):
    """A routing policy that counts its decisions."""

    @property
    def decisions(self) -> tuple[int, int]:
        """(changed decisions, all decisions) so far. A decision is one token in one layer."""

    def __call__(self, router: Router, routing: Routing) -> Routing | None: ...


class PolicyLM(EngineLM):
    """An `EngineLM` of a model on which the policy is installed."""

    def __init__(self, model: Any, tokenizer: Any, policy: CountingPolicy, **options: Any):
        super().__init__(model, tokenizer, **options)
        self._policy = policy

    @property
    def cost(self) -> dict[str, int]:
        """`EngineLM.cost` with the number of changed decisions and of all decisions (one per token and layer)."""
        changed, decided = self._policy.decisions
        return super().cost | {"constrained_decisions": changed, "routing_decisions": decided}


@contextmanager
def with_policy(model: LoadedModel, policy: CountingPolicy, config: Config) -> Iterator[PolicyLM]:
    """The LM of the model under the policy."""
    with routed(model.model, policy):
        yield PolicyLM(model.model, model.tokenizer, policy, **engine_options(config))
