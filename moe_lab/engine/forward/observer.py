"""Observers of the plain model: they get each forward pass before it runs, and each request's tokens after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moe_lab.engine.forward.batch import Tokens
    from moe_lab.engine.hf import Request
    from moe_lab.routing import Router, Routing


class Observer:
    """Sees what a plain model reads; this one looks away."""

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        """As a routing policy; this one leaves every decision as it is."""
        return None

    def expect(self, tokens: Tokens) -> None:
        """Called before each forward pass."""

    def read(self, kind: str, request: Request, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Called when a request is answered: the token ids that were read for it.

        A text in several windows is several calls. The last token of an answer is predicted and not read.
        """


@contextmanager
def observed(lm: Any, observer: Observer) -> Iterator[None]:
    """Inside the context `observer`, a routing policy as well, sees all that an `EngineLM` reads and routes.

    Raises ConfigError for a model that does not run as rows.
    """
    from moe_lab.routing import routed

    lm.observe(observer)
    try:
        with routed(lm.model, observer):
            yield
    finally:
        lm.observe(Observer())
