"""The language model of methods that install one policy on the model and report what it counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moe_lab.config.schema import Config
from moe_lab.engine.engine import KVEngine
from moe_lab.engine.forward.batch import Tokens
from moe_lab.engine.forward.forward import Observer
from moe_lab.engine.lm import EngineLM
from moe_lab.methods.base import engine_options
from moe_lab.models.facts import LoadedModel
from moe_lab.routing import Policy, PolicyFunction, routed
from moe_lab.routing.policy import as_policy
from moe_lab.routing.tokens import TokenPolicyFunction, with_tokens


class PolicyLM(EngineLM):
    """An `EngineLM` of a model on which the policy is installed.

    The policy's counts leave padding out.
    """

    def __init__(self, model: Any, tokenizer: Any, policy: Policy, **options: Any) -> None:
        super().__init__(model, tokenizer, counts_tokens=bool(policy.counts()), **options)
        self._policy = policy
        if isinstance(self.engine, KVEngine):
            self.observe(Observer())

    @contextmanager
    def running(self) -> Iterator[None]:
        """As `EngineLM.running`. Afterwards the policy knows of no padding."""
        with super().running():
            try:
                yield
            finally:
                self._policy.real_T = None  # a later pass is not this LM's

    def observe(self, observer: Observer) -> None:
        """As `EngineLM.observe`. The policy still gets the padding of each pass."""
        super().observe(observer)
        assert isinstance(self.engine, KVEngine)
        self.engine.forward.observer = _Padding(self._policy, observer)

    @property
    def cost(self) -> dict[str, int]:
        """`EngineLM.cost` with what the policy counted."""
        return super().cost | self._policy.counts()


class _Padding(Observer):
    """Tells the policy the padding of each pass, and the observer its tokens."""

    def __init__(self, policy: Policy, observer: Observer):
        self.policy = policy
        self.observer = observer

    def expect(self, tokens: Tokens) -> None:
        """Called before each pass."""
        real_T = tokens.real_BS.reshape(-1)
        has_padding = tokens.count < len(real_T)
        self.policy.real_T = real_T if has_padding else None
        self.observer.expect(tokens)


@contextmanager
def with_policy(
    model: LoadedModel,
    policy: PolicyFunction | TokenPolicyFunction,
    config: Config,
    seed: int = 0,
) -> Iterator[PolicyLM]:
    """The LM of the model under the policy. `seed` is the key of the noise of its tokens."""
    with with_tokens(model.model, policy, seed) as decide:
        installed = as_policy(decide)
        with routed(model.model, installed):
            yield PolicyLM(model.model, model.tokenizer, installed, **engine_options(config))
