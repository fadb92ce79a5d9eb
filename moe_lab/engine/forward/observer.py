"""Observers of the base model. They get each forward pass before it runs, and each request's tokens after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moe_lab.engine.forward.batch import Tokens
    from moe_lab.engine.hf import Request
    from moe_lab.routing import Router, Routing


class Observer:
    """The base of observers; it does nothing."""

    observes = True
    """Whether it changes no decision: it then gets those of final policies (`routed`)."""

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        """The observer is also a routing policy, called at every router."""
        return None

    def expect(self, tokens: Tokens) -> None:
        """Called before each forward pass."""

    def read(self, kind: str, request: Request, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Called when a request is answered, with the token ids that the model read for it.

        A text of several windows leads to several calls. `answer` lacks its last token, which is predicted only.
        """


@contextmanager
def observed(lm: Any, observer: Observer) -> Iterator[None]:
    """Inside the context `observer` gets all passes, routing decisions and requests of an `EngineLM`.

    Raises ConfigError for a model without a `KVEngine`.
    """
    from moe_lab.routing import routed

    lm.observe(observer)
    try:
        with routed(lm.model, observer):
            yield
    finally:
        lm.observe(Observer())
