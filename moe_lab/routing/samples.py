"""The routing of an ensemble's samples: what each of them asks of it, and samples that take other experts.

T = tokens of a pass, N = tokens among them that are samples, E = experts, K = experts per token, C = chosen experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from moe_lab.errors import RoutingError
from moe_lab.routing.hook import Router, Routing, require_choice_by_logits
from moe_lab.routing.noise import NoisyTokens
from moe_lab.routing.policies import widened


class SampleRouting(Protocol):
    """A policy that routes the samples of an ensemble, all but the first sample of each token."""

    def expect(self, tokens: NoisyTokens | None) -> None:
        """Set the samples of the next forward pass, which are called its noisy tokens; None: no token."""

    @property
    def noiseless(self) -> bool:
        """Whether all samples are routed as the router routes them."""

    @property
    def decisions(self) -> tuple[int, int]:
        """(decisions with another set of experts than the router's, all decisions that count) so far."""

    def __call__(self, router: Router, routing: Routing) -> Routing | None: ...


Choose = Callable[[Router, Routing, NoisyTokens], Tensor]
"""(router, its decision for N tokens, the keys of these tokens) -> int64 [N, C]: distinct experts."""


class OtherExperts:
    """A `SampleRouting`: the tokens given to `expect` take the experts of `choose`. Other tokens are not changed.

    Weights follow the family's rule for these C experts. Where C is not K, the tokens with fewer experts get more, with
    weight 0, so that all tokens of the pass have the same number.

    Raises RoutingError in a pass before the first `expect`.
    """

    noiseless = False
    decisions = (0, 0)

    def __init__(self, choose: Choose):
        self.choose = choose
        self._expected = False
        self._tokens: NoisyTokens | None = None

    def expect(self, tokens: NoisyTokens | None) -> None:
        """Set the tokens of the next forward pass that take other experts; None: no token."""
        self._expected, self._tokens = True, tokens

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        if not self._expected:
            raise RoutingError(
                "OtherExperts has no tokens: `expect` was not called. Call it before each pass."
            )
        if self._tokens is None:
            return None
        require_choice_by_logits(router, "The samples choose other experts by")
        index_N = self._tokens.index.to(routing.index_TK.device)
        own = Routing(*(part[index_N] for part in routing))
        index_NC = self.choose(router, own, self._tokens)
        weights_NC = router.weights(own.logits_TE, index_NC).to(own.weights_TK.dtype)
        width = max(index_NC.shape[-1], routing.index_TK.shape[-1])
        others = widened(router, Routing(own.logits_TE, weights_NC, index_NC), width)
        usual = widened(router, routing, width)
        return Routing(
            routing.logits_TE,
            usual.weights_TK.index_copy(0, index_N, others.weights_TK),
            usual.index_TK.index_copy(0, index_N, others.index_TK),
        )
