"""A cheap proof that routing methods act on a model that is loaded in an unusual way."""

from __future__ import annotations

from typing import Any

import torch

from moe_lab.errors import ModelError, RoutingError
from moe_lab.routing import Router, Routing, routed

TOKENS = 4


def prove_seam(model: Any, device: torch.device, source: str) -> None:
    """One forward pass of four tokens: every router is called, gives its rule's weights, and the logits are numbers.

    Raises ModelError where that is not so: a quantized kernel bypasses the routers, say, or parameters of a router
    are elsewhere when its rule needs them.
    """
    ids = torch.arange(TOKENS, device=device)[None]
    try:
        with torch.no_grad(), routed(model, _as_the_rule_says):
            logits = model(ids, use_cache=False).logits
    except RoutingError as error:
        raise ModelError(f"{source} cannot be routed as it was loaded. {error}") from error
    if not logits.isfinite().all():
        raise ModelError(
            f"{source} gives logits that are no numbers, as it was loaded. Try another dtype, or another checkpoint."
        )


def _as_the_rule_says(router: Router, routing: Routing) -> None:
    weights_TK = router.weights(routing.logits_TE, routing.index_TK)
    if not torch.allclose(weights_TK.float(), routing.weights_TK.float(), rtol=1e-2, atol=1e-4):
        raise RoutingError(
            f"The router {router.name} weighs its experts otherwise than {router.family.name} does."
        )
