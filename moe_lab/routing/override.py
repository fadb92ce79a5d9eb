"""`override`: route by a function of one's own, which has the final decision.

T = tokens of a pass, E = experts, K = experts per token.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moe_lab.errors import RoutingError
from moe_lab.routing.hook import opened, routed
from moe_lab.routing.policy import PolicyFunction
from moe_lab.routing.router import Router
from moe_lab.routing.rules import Routing
from moe_lab.routing.tokens import TokenPolicyFunction, with_tokens


@contextmanager
def override(
    model: nn.Module, policy: PolicyFunction | TokenPolicyFunction, *, seed: int = 0
) -> Iterator[list[Router]]:
    """Route the tokens of `model(...)` and `model.generate(...)` inside the context by `policy`;
    yields the routers.

        def second_best(router, routing):
            best_T1 = routing.index_TK[:, :1]
            scores_TE = router.scores(routing.logits_TE).scatter(-1, best_T1, -torch.inf)
            index_TK = router.choose(scores_TE, k=routing.index_TK.shape[-1])
            weights_TK = router.weights(routing.logits_TE, index_TK)
            return routing._replace(index_TK=index_TK, weights_TK=weights_TK)

        with override(model, second_best):
            model(**inputs)

    Args:
        policy: called as `policy(router, routing)` at every routing decision, for all T tokens of a
            pass at once, padding included. `routing` has `logits_TE`, `weights_TK` and `index_TK`
            (int64); the policy returns such a triple with other weights or indices, of K experts or
            fewer, or None for no change. The triple that it gets is a copy. `router` has the number
            of its MoE `layer`. A third argument `tokens` without a default gets the tokens and
            their keyed noise (`PolicyTokens`): it is called as `policy(router, routing, tokens)`.
        seed: key of that noise.

    The policy has the final decision, also inside: RoE, C3PO and masked experts of `expert_metrics`
    decide first, and `routing` is what they decided, for all samples of a pass. A weight of 0 drops
    an expert. Of two `override` contexts the inner one decides last.

    Raises ModelError for a model without a supported router. Raises RoutingError if the policy
    returns something else than a routing decision, if a pass bypasses a router, under gradient
    checkpointing, if no token was routed inside the context, and for a policy that takes tokens
    where their text is unknown.
    """
    with deciding_last(model, policy, seed) as decisions:
        yield decisions.routers
    if not decisions.count:
        raise RoutingError(
            f"No token passed the routers of {type(model).__name__} inside override(...): the "
            "policy changed nothing."
        )


@dataclass
class Decisions:
    """What a policy of one's own decided."""

    routers: list[Router]
    count: int = 0
    """How often it was called."""


@contextmanager
def deciding_last(
    model: nn.Module, policy: PolicyFunction | TokenPolicyFunction, seed: int
) -> Iterator[Decisions]:
    """`override`, also for a context in which no token may be routed: one of several processes may
    have nothing to answer."""
    decisions = Decisions([])

    def counted(router: Router, routing: Routing) -> Routing | None:
        decisions.count += 1
        return decision_of(decide, router, routing)

    with (
        with_tokens(model, policy, seed) as decide,
        routed(model, counted, final=True) as routers,
        opened(model, "override(model)", takes_ensembles=True),
    ):
        decisions.routers = routers
        yield decisions


def decision_of(policy: PolicyFunction, router: Router, routing: Routing) -> Routing | None:
    """What a policy of one's own decides for a copy of the router's decision, widened to the
    router's K experts; None for no change.

    Raises RoutingError if it returns something else than a routing decision.
    """
    with torch.inference_mode(False):  # copies that count how often they were written to
        copied = Routing(*(tensor.clone() for tensor in routing))
    versions = [tensor._version for tensor in copied]
    changed = policy(router, copied)
    if changed is not None:
        return _checked(changed, routing, router)
    if versions != [tensor._version for tensor in copied]:
        raise RoutingError(
            f"The policy wrote into the decision for {router.name} and returned None, which "
            "means no change: it must return routing._replace(index_TK=..., weights_TK=...)."
        )
    return None


def _checked(changed: Any, routing: Routing, router: Router) -> Routing:
    """The policy's decision `changed`, widened to the router's K experts.

    Raises RoutingError unless it has the shapes and the device of the router's decision `routing`,
    indices of experts and finite weights.
    """
    is_triple = isinstance(changed, tuple) and len(changed) == 3
    if not is_triple or not all(isinstance(part, Tensor) for part in changed):
        raise RoutingError(
            f"The policy returned a {type(changed).__name__} for {router.name}: it must return "
            "None for no change, or routing._replace(index_TK=..., weights_TK=...)."
        )
    changed = Routing(*changed)
    # weights of a wider dtype may overflow
    changed = changed._replace(weights_TK=changed.weights_TK.to(routing.weights_TK.dtype))
    problem = _problem(changed, routing)
    if problem is not None:
        raise RoutingError(f"The policy's decision for {router.name} is none: {problem}.")
    K = routing.index_TK.shape[-1]
    return router.widened(changed, K)


def _problem(changed: Routing, routing: Routing) -> str | None:
    """Why a triple cannot take the place of a router's decision; None where it can."""
    logits_TE, weights_TK, index_TK = changed
    E = routing.logits_TE.shape[-1]
    T, K = routing.index_TK.shape
    fits = index_TK.shape[:-1] == (T,) and 1 <= index_TK.shape[-1] <= K
    if index_TK.shape != weights_TK.shape or not fits:
        shapes = f"{tuple(weights_TK.shape)} and {tuple(index_TK.shape)}"
        return f"weights_TK and index_TK must have the shape [{T}, 1 to {K}], and have {shapes}"
    if logits_TE.shape != routing.logits_TE.shape:
        return f"logits_TE must have the shape {tuple(routing.logits_TE.shape)}"
    device = routing.logits_TE.device
    if any(tensor.device != device for tensor in changed):
        return f"its tensors must be on {device}"
    if index_TK.dtype != torch.int64:
        return f"index_TK must be int64, and is {index_TK.dtype}"
    if not ((index_TK >= 0) & (index_TK < E)).all():
        return f"index_TK must be below {E}, the number of experts"
    if not weights_TK.isfinite().all():
        return "weights_TK are NaN or infinite"
    return None
