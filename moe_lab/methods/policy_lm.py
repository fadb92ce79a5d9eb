"""The language model of methods that install one policy on the model and report what it counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moe_lab.config.schema import Config
from moe_lab.engine.engine import KVEngine
from moe_lab.engine.forward.batch import Tokens
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import Observer
from moe_lab.engine.forward.layers import runs_on_kv_cache
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.recurrent import RecurrentEngine, RecurrentForward
from moe_lab.methods.base import engine_options
from moe_lab.models.facts import LoadedModel
from moe_lab.routing import routed
from moe_lab.routing.dynamic import TopP
from moe_lab.routing.hook import Policy
from moe_lab.routing.policies import PartnersOnly, Steered


class PolicyLM(EngineLM):
    """An `EngineLM` of a model on which the policy is installed.

    `TopP` counts experts, without padding. Models without a `KVEngine` then run one request at a time, which needs no
    padding.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        policy: Policy | PartnersOnly | Steered | TopP,
        **options: Any,
    ) -> None:
        def recurrent(lm: EngineLM) -> RecurrentEngine:
            return RecurrentEngine(RecurrentForward(lm.model, Ensemble()))

        alone = isinstance(policy, TopP) and not runs_on_kv_cache(model)
        super().__init__(model, tokenizer, make_engine=recurrent if alone else None, **options)
        self._policy = policy
        if isinstance(policy, TopP) and isinstance(self.engine, KVEngine):
            self.observe(_Padding(policy))

    @property
    def cost(self) -> dict[str, int]:
        """`EngineLM.cost` with the number of decisions (one per token and layer), and of those that were changed, or of
        the experts that `TopP` chose. A policy that counts nothing adds nothing."""
        if isinstance(self._policy, TopP):
            return super().cost | self._policy.counts
        if not isinstance(self._policy, PartnersOnly | Steered):
            return super().cost
        changed, decided = self._policy.decisions
        return super().cost | {"constrained_decisions": changed, "routing_decisions": decided}


class _Padding(Observer):
    """Sets the tokens of each pass that the policy counts: all but padding."""

    def __init__(self, policy: TopP):
        self.policy = policy

    def expect(self, tokens: Tokens) -> None:
        self.policy.expect(tokens.real_BS.reshape(-1))


@contextmanager
def with_policy(
    model: LoadedModel, policy: Policy | PartnersOnly | Steered | TopP, config: Config
) -> Iterator[PolicyLM]:
    """The LM of the model under the policy."""
    with routed(model.model, policy):
        yield PolicyLM(model.model, model.tokenizer, policy, **engine_options(config))
