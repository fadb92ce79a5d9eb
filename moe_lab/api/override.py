"""Routing by a function of one's own.

T = tokens of a pass, E = experts, K = experts per token.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from moe_lab.config.arguments import wrong
from moe_lab.errors import RoutingError
from moe_lab.routing.hook import Policy, Router, Routing, require_routers, routed
from moe_lab.routing.nesting import OVERRIDE, deciding, opened


@contextmanager
def override(model: nn.Module, policy: Policy) -> Iterator[list[Router]]:
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
            triple with other weights or indices of the same shapes, or None for no change. `router` has the number of
            its MoE `layer`.

    Contexts nest: an inner one, RoE too, gets this policy's decision. RoE adds its noise to the logits that the policy
    returns, so its experts and weights must be those of its logits there.

    Under gradient checkpointing the backward pass belongs into the context too. The policy is called again there, and
    must decide as before: noise of torch's default generator does, since checkpointing restores its state.

    Raises ModelError for a model without a supported router, and RoutingError for a decision of the policy that is
    none or differs where it is repeated, for a pass that bypasses a router, and where no token was routed inside the
    context.
    """
    if not _takes_two(policy):
        raise wrong(
            "override(model, policy)",
            policy,
            "give a function (router, routing) that returns a routing or None",
        )
    calls = 0

    def checked(router: Router, routing: Routing) -> Routing | None:
        nonlocal calls
        calls += 1
        changed = policy(router, routing)
        if changed is not None:
            changed = _checked(_as_routing(changed, router), routing, router)
        note(router, changed)
        return changed

    def again(router: Router, routing: Routing, number: int) -> Routing | None:
        return checked(router, routing)

    routers = require_routers(model)
    with opened(model, OVERRIDE), deciding(routers) as note, routed(model, checked, again=again):
        yield routers
    if not calls:
        raise RoutingError(
            f"No token passed the routers of {type(model).__name__} inside override(...): the policy changed nothing."
        )


def _takes_two(policy: Any) -> bool:
    """Whether it can be called as policy(router, routing)."""
    try:
        inspect.signature(policy).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a function in C without a signature
        return True
    return True


def _as_routing(changed: Any, router: Router) -> Routing:
    """Raise RoutingError for what is no triple of tensors."""
    if isinstance(changed, tuple) and len(changed) == 3 and all(isinstance(each, Tensor) for each in changed):
        return Routing(*changed)
    raise RoutingError(
        f"The policy returned a {type(changed).__name__} for {router.name}: it must return None for no change, or "
        "routing._replace(index_TK=..., weights_TK=...)."
    )


def _checked(changed: Routing, routing: Routing, router: Router) -> Routing:
    """Raise RoutingError unless it has a decision's shapes and device, indices of experts and finite weights."""
    problem = None
    if (
        changed.index_TK.shape != routing.index_TK.shape
        or changed.weights_TK.shape != routing.weights_TK.shape
    ):
        problem = f"weights_TK and index_TK must have the shape {tuple(routing.index_TK.shape)}"
    elif changed.logits_TE.shape != routing.logits_TE.shape:
        problem = f"logits_TE must have the shape {tuple(routing.logits_TE.shape)}"
    elif len({tensor.device for tensor in (*changed, routing.logits_TE)}) > 1:
        problem = f"its tensors must be on {routing.logits_TE.device}"
    elif changed.index_TK.dtype != torch.int64:
        problem = f"index_TK must be int64, and is {changed.index_TK.dtype}"
    elif not ((changed.index_TK >= 0) & (changed.index_TK < routing.logits_TE.shape[-1])).all():
        problem = f"index_TK must be below {routing.logits_TE.shape[-1]}, the number of experts"
    elif not changed.weights_TK.isfinite().all():
        problem = "weights_TK are NaN or infinite"
    if problem:
        raise RoutingError(f"The policy's decision for {router.name} is none: {problem}.")
    return changed._replace(weights_TK=changed.weights_TK.to(routing.weights_TK.dtype))
