"""`override`: route by a function of one's own, which has the final decision.

T = tokens of a pass, E = experts, K = experts per token.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from moe_lab.errors import RoutingError
from moe_lab.routing.hook import opened, routed
from moe_lab.routing.policy import PolicyFunction
from moe_lab.routing.router import Router
from moe_lab.routing.rules import Routing


@contextmanager
def override(model: nn.Module, policy: PolicyFunction) -> Iterator[list[Router]]:
    """Route the tokens of `model(...)` and `model.generate(...)` inside the context by `policy`; yields the routers.

        def second_best(router, routing):
            scores_TE = router.scores(routing.logits_TE).scatter(-1, routing.index_TK[:, :1], -torch.inf)
            index_TK = router.choose(scores_TE, k=routing.index_TK.shape[-1])
            return routing._replace(index_TK=index_TK, weights_TK=router.weights(routing.logits_TE, index_TK))

        with override(model, second_best):
            model(**inputs)

    Args:
        policy: called as `policy(router, routing)` at every routing decision, for all T tokens of a pass at once,
            padding included. `routing` has `logits_TE`, `weights_TK` and `index_TK` (int64); the policy returns such a
            triple with other weights or indices, of K experts or fewer, or None for no change. The triple that it gets
            is a copy. `router` has the number of its MoE `layer`.

    The policy has the final decision, also inside: RoE, C3PO and masked experts of `expert_metrics` decide first, and
    `routing` is what they decided, for all samples of a pass. A weight of 0 drops an expert. Of two `override` contexts
    the inner one decides last.

    Raises ModelError for a model without a supported router, and RoutingError for a decision of the policy that is
    none, for a pass that bypasses a router, under gradient checkpointing, and where no token was routed inside the
    context.
    """
    calls = 0

    def checked(router: Router, routing: Routing) -> Routing | None:
        nonlocal calls
        calls += 1
        with torch.inference_mode(False):  # copies that count how often they were written to
            given = Routing(*(tensor.clone() for tensor in routing))
        versions = [tensor._version for tensor in given]
        changed = policy(router, given)
        if changed is not None:
            return _checked(changed, routing, router)
        if versions != [tensor._version for tensor in given]:
            raise RoutingError(
                f"The policy wrote into the decision for {router.name} and returned None, which means no change: it "
                "must return routing._replace(index_TK=..., weights_TK=...)."
            )
        return None

    with (
        routed(model, checked, final=True) as routers,
        opened(model, "override(model)", takes_ensembles=True),
    ):
        yield routers
    if not calls:
        raise RoutingError(
            f"No token passed the routers of {type(model).__name__} inside override(...): the policy changed nothing."
        )


def _checked(changed: Any, routing: Routing, router: Router) -> Routing:
    """The decision with K experts. Raises RoutingError unless it has a decision's shapes and device, indices of experts
    and finite weights."""
    if not (
        isinstance(changed, tuple)
        and len(changed) == 3
        and all(isinstance(x, Tensor) for x in changed)
    ):
        raise RoutingError(
            f"The policy returned a {type(changed).__name__} for {router.name}: it must return None for no change, or "
            "routing._replace(index_TK=..., weights_TK=...)."
        )
    changed = Routing(*changed)
    # weights of a wider dtype may overflow
    changed = changed._replace(weights_TK=changed.weights_TK.to(routing.weights_TK.dtype))
    logits_TE, weights_TK, index_TK = changed
    experts, (T, K), problem = routing.logits_TE.shape[-1], routing.index_TK.shape, None
    if (
        index_TK.shape != weights_TK.shape
        or index_TK.shape[:-1] != (T,)
        or not 1 <= index_TK.shape[-1] <= K
    ):
        shapes = f"{tuple(weights_TK.shape)} and {tuple(index_TK.shape)}"
        problem = f"weights_TK and index_TK must have the shape [{T}, 1 to {K}], and have {shapes}"
    elif logits_TE.shape != routing.logits_TE.shape:
        problem = f"logits_TE must have the shape {tuple(routing.logits_TE.shape)}"
    elif len({tensor.device for tensor in (*changed, routing.logits_TE)}) > 1:
        problem = f"its tensors must be on {routing.logits_TE.device}"
    elif index_TK.dtype != torch.int64:
        problem = f"index_TK must be int64, and is {index_TK.dtype}"
    elif not ((index_TK >= 0) & (index_TK < experts)).all():
        problem = f"index_TK must be below {experts}, the number of experts"
    elif not weights_TK.isfinite().all():
        problem = "weights_TK are NaN or infinite"
    if problem:
        raise RoutingError(f"The policy's decision for {router.name} is none: {problem}.")
    return router.widened(changed, K)
