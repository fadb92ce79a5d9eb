"""What decides in the place of a router."""

from collections.abc import Callable

from torch import Tensor

from moe_lab.routing.router import Router
from moe_lab.routing.rules import Routing

PolicyFunction = Callable[[Router, Routing], Routing | None]
"""Called with a router's decision. Returns other weights and indices, or None for no change."""


class Policy:
    """Decides at every routing decision, and counts.

    A subclass has its own `__call__`. `Policy(function)` is the policy of a plain function, which
    counts nothing.
    """

    observes = False
    """Whether it changes no decision. An observer gets those of final policies, too (`routed`)."""
    repeatable = False
    """Whether it reads no value of the device and keeps no count on the host, so that a GPU may
    repeat a step of decoding without calling it (`engine/forward/decode_step.py`)."""
    real_T: Tensor | None = None
    """bool: False for the padding of the next pass, which `counts` leaves out. None: the pass has
    no padding."""

    def __init__(self, function: PolicyFunction):
        self._function = function

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        return self._function(router, routing)

    def counts(self) -> dict[str, int]:
        """What was counted so far, by name. A policy that counts has all of its names before the
        first pass."""
        return {}


def as_policy(policy: PolicyFunction) -> Policy:
    """The policy itself, or that of a plain function."""
    return policy if isinstance(policy, Policy) else Policy(policy)
