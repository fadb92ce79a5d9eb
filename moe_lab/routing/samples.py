"""Policies that route the samples of an ensemble, or other tokens of a pass that they are told.

T = tokens of a pass, N = samples among them, E = experts, K = experts per token, C = experts of a
sample.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from torch import Tensor

from moe_lab.errors import RoutingError
from moe_lab.routing.counting import DecisionCounter
from moe_lab.routing.policy import Policy
from moe_lab.routing.router import Router
from moe_lab.routing.rules import Routing


@dataclass(frozen=True)
class NoisyTokens:
    """The samples among the tokens of the next pass, and the keys of their noise. All int64 [N]."""

    index: Tensor | None
    """Indices among the T tokens of the pass; None: all of its tokens are samples."""
    document: Tensor
    repeat: Tensor
    row: Tensor
    position: Tensor
    counted: Tensor | None = None
    """bool [N]: the tokens whose decisions count; None: all."""
    known: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Results that depend on all keys but the positions, kept by the policy that computed them and
    by its layers."""

    def at(self, position: Tensor) -> Self:
        """The next tokens of the same samples, int64 [N]. `known` stays the same object."""
        return replace(self, position=position)

    def of(self, values_TX: Tensor) -> Tensor:
        """[N, X]: the values of the samples, from those of all tokens of the pass."""
        if self.index is None:
            return values_TX
        return values_TX[self.index.to(values_TX.device)]  # layers may be on several devices


class SamplePolicy(Policy, ABC):
    """A policy that routes samples: the tokens that `expect` gets before each pass. Other tokens
    are not changed."""

    noiseless = False
    """Whether all samples are routed as the router routes them."""

    def __init__(self) -> None:
        self._expected = False
        self._tokens: NoisyTokens | None = None

    def expect(self, tokens: NoisyTokens | None) -> None:
        """Set the samples of the next pass; None: it has none."""
        self._expected = True
        self._tokens = tokens

    @property
    def tokens(self) -> NoisyTokens | None:
        """The samples of the pass. Raises RoutingError before the first `expect`, since nothing
        would change."""
        if not self._expected:
            raise RoutingError(
                f"{type(self).__name__} has no tokens: `expect` was not called, so nothing would "
                "change. Call it before each pass; moe_lab.RoE(model, tokenizer) does."
            )
        return self._tokens

    @abstractmethod
    def __call__(self, router: Router, routing: Routing) -> Routing | None: ...


class CountedSamples(SamplePolicy):
    """A policy of samples that counts how many of their decisions differ from the router's."""

    def __init__(self) -> None:
        super().__init__()
        self._counter = DecisionCounter()

    def expect(self, tokens: NoisyTokens | None) -> None:
        self._compare()
        super().expect(tokens)

    def counts(self) -> dict[str, int]:
        """`changed_decisions`, those of samples with another set of experts than the router's, and
        `noisy_decisions`, all that the policy made.

        A decision is one token of one sample in one layer.
        """
        self._compare()
        changed, noisy = self._counter.totals
        return {"changed_decisions": changed, "noisy_decisions": noisy}

    def _compare(self) -> None:
        """Count the decisions of the pass so far."""
        if self._tokens is not None:
            self._counter.compare(self._tokens.index, self._tokens.counted)


def with_experts(
    router: Router, routing: Routing, tokens: NoisyTokens, logits_NE: Tensor, index_NC: Tensor
) -> Routing:
    """The decision with other experts for the samples, weighed by the family's rule for
    `logits_NE`.

    Where C is not K, the tokens with fewer experts get more, with weight 0: all tokens of a pass
    have the same number.
    """
    weights_NC = router.weights(logits_NE, index_NC)
    if tokens.index is None:
        return Routing(routing.logits_TE, weights_NC.to(routing.weights_TK.dtype), index_NC)
    C = index_NC.shape[-1]
    K = routing.index_TK.shape[-1]
    if C < K:
        _, weights_NC, index_NC = router.widened(Routing(logits_NE, weights_NC, index_NC), K)
    if C > K:
        routing = router.widened(routing, C)
    at_N = tokens.index.to(routing.index_TK.device)
    return routing.changed(at_N, weights_NC, index_NC)


Choose = Callable[[Router, Routing, NoisyTokens], Tensor]
"""(router, its decision for N samples, the keys of these samples) -> int64 [N, C]: distinct
experts."""


class OtherExperts(SamplePolicy):
    """Samples take the experts of `choose`.

    Args:
        repeatable: whether `choose` is (`Policy.repeatable`).
    """

    def __init__(self, choose: Choose, repeatable: bool = False):
        super().__init__()
        self.choose = choose
        self.repeatable = repeatable

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        tokens = self.tokens
        if tokens is None:
            return None
        samples = Routing(*(tokens.of(values) for values in routing))
        index_NC = self.choose(router, samples, tokens)
        return with_experts(router, routing, tokens, samples.logits_TE, index_NC)


class NoisyChoice(NamedTuple):
    """A router's choice with noise."""

    scores_NE: Tensor
    """float32: the router's scores plus noise."""
    index_NK: Tensor
    """int64: the experts that it chooses by these."""


def noisy_choice(router: Router, logits_NE: Tensor, noise_NE: Tensor, k: int) -> NoisyChoice:
    """The k experts of each sample that the router chooses by its scores plus this noise."""
    scores_NE = router.scores(logits_NE) + noise_NE.to(logits_NE.device)
    return NoisyChoice(scores_NE, router.choose(scores_NE, k))
