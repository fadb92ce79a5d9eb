"""A policy of one's own that decides for the routing samples of an ensemble: sample 0 of each token
is the base model's, the others are as many draws of the policy.

N = samples among the tokens of a pass, K = experts per token.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from moe_lab.routing.override import decision_of
from moe_lab.routing.router import Router
from moe_lab.routing.rules import Routing
from moe_lab.routing.samples import CountedSamples, NoisyTokens
from moe_lab.routing.tokens import PolicyTokens, TokenPolicyFunction, TokenSource, sample_source


class SampledPolicy(CountedSamples):
    """Samples are routed by a policy that takes tokens: those of the samples alone.

    Args:
        source: the tokens of the passes of the model.
    """

    def __init__(self, policy: TokenPolicyFunction, source: TokenSource):
        super().__init__()
        self._policy = policy
        self._source = source
        self._of_samples: PolicyTokens | None = None
        """The samples of the pass, once a router has asked for them."""

    def expect(self, tokens: NoisyTokens | None) -> None:
        self._of_samples = None
        super().expect(tokens)

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        tokens = self.tokens
        if tokens is None:
            return None
        of_pass = self._source.of(router, routing)
        if self._of_samples is None:
            self._of_samples = of_pass if tokens.index is None else of_pass.at(tokens.index)
        policy_tokens = self._of_samples.to(routing.logits_TE.device)

        def decide(router: Router, routing: Routing) -> Routing | None:
            return self._policy(router, routing, policy_tokens)

        samples = Routing(*(tokens.of(values) for values in routing))
        changed = decision_of(decide, router, samples)
        index_NK = samples.index_TK if changed is None else changed.index_TK
        self._counter.decided(index_NK, routing.index_TK)
        if changed is None:
            return None
        if tokens.index is None:
            return changed
        at_N = tokens.index.to(routing.index_TK.device)
        return routing.changed(at_N, changed.weights_TK, changed.index_TK)


@contextmanager
def sampled(model: nn.Module, policy: TokenPolicyFunction, seed: int) -> Iterator[SampledPolicy]:
    """The routing of an ensemble on this model, inside the context. `seed` is the key of the
    noise."""
    with sample_source(model, seed) as source:
        yield SampledPolicy(policy, source)
