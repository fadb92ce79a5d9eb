"""The policy of the commands with method=policy (docs/extending.md)."""

from __future__ import annotations

from typing import Any


def drop_weakest(router: Any, routing: Any, scale: float = 0.0) -> Any:
    """The weakest expert of each token with a share of its weight."""
    weakest_T1 = routing.weights_TK.argmin(-1, keepdim=True)
    scaled_T1 = scale * routing.weights_TK.gather(-1, weakest_T1)
    return routing._replace(weights_TK=routing.weights_TK.scatter(-1, weakest_T1, scaled_T1))


def fail(router: Any, routing: Any) -> Any:
    """A policy with a fault, whose run fails with exit code 1."""
    raise ValueError("A fault of this policy.")
