"""Contexts inside one another: which are open on a model, and what the policy of an outer one decided.

An inner policy gets the decision of the outer one. Policies that choose anew from the logits (noise, masked experts)
would lose a choice that does not follow from them: `require_choice_by_logits` refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from moe_lab.errors import RoutingError
from moe_lab.routing.adapters import transformers_model
from moe_lab.routing.seams import Routing

if TYPE_CHECKING:
    from moe_lab.routing.hook import Router

OVERRIDE, RECORD, REPLAY = "override(model, policy)", "record(model)", "replay(model, routes)"
"""Names of contexts."""

_open: WeakKeyDictionary[nn.Module, list[str]] = WeakKeyDictionary()
"""The contexts on each model, the outermost first."""
_decided: WeakKeyDictionary[nn.Module, Routing | None] = WeakKeyDictionary()
"""The last decision of `override` for each router inside it; None: it did not change the router's own."""


@contextmanager
def opened(model: nn.Module, name: str, refused: Sequence[str] = ()) -> Iterator[None]:
    """A context on the model, by its name. Raises RoutingError inside one of the `refused` contexts."""
    names = _open.setdefault(transformers_model(model), [])
    for outer in refused:
        if outer in names:
            raise RoutingError(
                f"{name} inside {outer}: they cannot be combined, since {name} runs several routings of a token, and "
                f"later layers apart. Leave the context of {outer} first."
            )
    names.append(name)
    try:
        yield
    finally:
        names.pop()


@contextmanager
def deciding(routers: Sequence[Router]) -> Iterator[Callable[[Router, Routing | None], None]]:
    """Inside the context a policy of the caller's own decides for these routers; yields what notes its decisions."""
    outer = {router.module for router in routers if router.module in _decided}

    def note(router: Router, changed: Routing | None) -> None:
        if changed is not None or router.module not in outer:
            _decided[router.module] = changed

    try:
        yield note
    finally:
        for router in routers:
            if router.module not in outer:
                _decided.pop(router.module, None)


def require_choice_by_logits(router: Router, what: str) -> None:
    """Raise RoutingError where the outer policy's experts or weights are not those of its logits.

    `what` says what the inner policy does with the logits.
    """
    outer = _decided.get(router.module)
    if outer is None:
        return
    index_TK = router.choose(router.scores(outer.logits_TE), outer.index_TK.shape[-1])
    weights_TK = router.weights(outer.logits_TE, outer.index_TK)
    if not torch.equal(_sorted(index_TK), _sorted(outer.index_TK)) or not torch.allclose(
        weights_TK.float(), outer.weights_TK.float(), atol=1e-2, equal_nan=True
    ):
        raise RoutingError(
            f"{what} the logits that the policy of override returns, and its experts or weights are not those of these "
            "logits, so that they would be lost. Return logits_TE by which router.choose(router.scores(logits_TE), k) "
            "and router.weights(logits_TE, index_TK) give them."
        )


def _sorted(index_TK: Tensor) -> Tensor:
    return index_TK.sort(dim=-1).values
