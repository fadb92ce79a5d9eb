"""The base class of routing methods: a method is an ensemble of routing samples, or one policy on
the model.

A subclass gives a `Config`, and `ensemble_for` or `policy`. Opening, identity and the block of
results.json are written here. A method whose settings a study can choose is a `GridMethod` or a
`TemperatureMethod` (`tunable_method.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from moe_lab.config.schema import Config as RunConfig
from moe_lab.methods.base import ensemble_lm
from moe_lab.methods.method import Context, Counters, Method, SessionInfo, share

if TYPE_CHECKING:
    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.engine.lm import EngineLM
    from moe_lab.models.facts import LoadedModel, ModelFacts
    from moe_lab.routing import PolicyFunction
    from moe_lab.routing.tokens import TokenPolicyFunction


class PolicyMethod(Method):
    """An ensemble of routing samples, or one policy that is installed on the model."""

    data_keys: ClassVar[tuple[str, ...]] = ()
    """Keys that choose data. They are not part of the identity: `data_identity` has the content."""
    counted: tuple[str, str, str] | None = None
    """(key of its block, two counters of `EngineLM.cost`): the block has the ratio of the
    counters. None: no ratio."""

    def ensemble_for(self, facts: ModelFacts, seed: int) -> Ensemble | None:
        """The ensemble on a model with these facts; None if the method is a policy."""
        return None

    def policy(
        self, model: LoadedModel, config: RunConfig
    ) -> tuple[PolicyFunction | TokenPolicyFunction, dict[str, Any]]:
        """(the policy on this model, `EngineLM.session_info`) of a method without an ensemble.

        Its function may take a third argument `tokens`. If it draws their noise, the method sets
        `random = True`: the noise then depends on the run's seed.
        """
        raise NotImplementedError

    def resolved(self, facts: ModelFacts) -> dict[str, Any]:
        """Values that replace or extend the configuration in the identity, by key: for example a
        default of this model in place of null."""
        return {}

    def reported(self, facts: ModelFacts) -> dict[str, Any]:
        """The configuration as its block of results.json has it: the keys that have an effect."""
        reported = super().identity(facts) | self.resolved(facts)
        del reported["name"]
        return reported

    @contextmanager
    def open(self, model: LoadedModel, context: Context) -> Iterator[EngineLM]:
        from moe_lab.methods.policy_lm import with_policy

        seed = context.config.seed if self.random else 0
        ensemble = self.ensemble_for(model.facts, seed)
        if ensemble is not None:
            yield ensemble_lm(model, context, ensemble, seed)
            return
        policy, session_info = self.policy(model, context.config)
        with with_policy(model, policy, context.config, seed) as lm:
            lm.session_info = session_info
            yield lm

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        """The keys that have an effect, without those that choose data."""
        keys = super().identity(facts)
        identity = {key: value for key, value in keys.items() if key not in self.data_keys}
        return identity | self.resolved(facts)

    def report(
        self, facts: ModelFacts, counters: Counters, session_info: SessionInfo
    ) -> dict[str, Any]:
        """{the method's name: its block}: `reported`, the ratio of the `counted` decisions (None
        without a decision), and the session's information."""
        block = self.reported(facts)
        if self.counted is not None:
            key, some, every = self.counted
            block[key] = share(counters, some, every)
        return {self.config.name.replace("-", "_"): block | dict(session_info)}
