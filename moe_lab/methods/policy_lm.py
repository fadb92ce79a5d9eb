"""Language models of methods that install one policy on the model and report what it counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from moe_lab.engine.engine import KVEngine
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.layers import runs_on_kv_cache
from moe_lab.engine.forward.observer import Observer
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.recurrent import RecurrentEngine, RecurrentForward
from moe_lab.methods.base import engine_options
from moe_lab.routing import Router, Routing, routed
from moe_lab.routing.dynamic import TopP

if TYPE_CHECKING:
    from moe_lab.config.schema import Config
    from moe_lab.engine.forward.batch import Tokens
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


class CountingLM(EngineLM):
    """An `EngineLM` of a model on which a policy with another number of experts for each token is installed.

    Padding is not counted. Models without a `KVEngine` run one request at a time, which needs no padding.
    """

    def __init__(self, model: Any, tokenizer: Any, policy: TopP, **options: Any):
        make_engine = None if runs_on_kv_cache(model) else _recurrent
        super().__init__(model, tokenizer, make_engine=make_engine, **options)
        self._policy = policy
        if isinstance(self.engine, KVEngine):
            self.observe(_Padding(policy))

    @property
    def cost(self) -> dict[str, int]:
        """`EngineLM.cost` with the numbers of chosen experts and of decisions (one per token and layer)."""
        return super().cost | self._policy.counts


def _recurrent(lm: Any) -> RecurrentEngine:
    return RecurrentEngine(RecurrentForward(lm.model, Ensemble()))


class _Padding(Observer):
    """Sets the tokens of each pass that the policy counts: all but padding."""

    def __init__(self, policy: TopP):
        self.policy = policy

    def expect(self, tokens: Tokens) -> None:
        self.policy.expect(None if tokens.real_BS is None else tokens.real_BS.reshape(-1))


@contextmanager
def with_experts(model: LoadedModel, policy: TopP, config: Config) -> Iterator[CountingLM]:
    """The LM of the model under the policy."""
    with routed(model.model, policy):
        yield CountingLM(model.model, model.tokenizer, policy, **engine_options(config))
