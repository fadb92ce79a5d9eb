"""Whether a policy decides the same in two equal passes.

A policy that draws random numbers of its own, or that counts its calls, would give other results in
each run of the same command.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from moe_lab.errors import ConfigError
from moe_lab.routing import PolicyFunction, Router, Routing
from moe_lab.routing.override import override
from moe_lab.routing.tokens import TokenPolicyFunction, with_tokens

TOKENS = 16
"""The length of the passes: enough for a token whose drawn experts differ."""


class Decision(NamedTuple):
    """The routing that a policy got, and the one that it returned."""

    before: Routing
    after: Routing | None


def repeats_itself(model: Any, policy: PolicyFunction | TokenPolicyFunction, seed: int = 0) -> bool:
    """Whether a policy returns the same decisions in two passes over the same tokens.

    What it keeps in `tokens.state` in the first pass, it has in the second one.

    Decisions are compared where the router's logits are the same in both passes, since kernels of a
    GPU may round differently. The state of torch's random numbers is put back.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    device = model.get_input_embeddings().weight.device
    ids = torch.arange(TOKENS, device=device)[None] % vocabulary
    passes = []
    with (
        torch.random.fork_rng(_gpus(device)),
        torch.inference_mode(),
        with_tokens(model, policy, seed) as decide,
    ):
        for _ in range(2):
            decisions: list[Decision] = []
            with override(model, _recorded(decide, decisions)):
                model(ids, use_cache=False)
            passes.append(decisions)
    first, second = passes
    if len(first) != len(second):
        return False
    return all(_alike(decision, repeated) for decision, repeated in zip(first, second, strict=True))


def check_repeatable(
    model: Any, policy: PolicyFunction | TokenPolicyFunction, seed: int, name: str
) -> None:
    """Raise ConfigError, which begins with `name`, for a policy that does not repeat itself."""
    if not repeats_itself(model, policy, seed):
        raise ConfigError(
            f"{name}: it decides differently in two equal passes, so it draws random numbers or "
            "counts its calls.\n"
            "Draw the noise of its tokens: give it a third argument `tokens`, and use "
            "tokens.gumbel(router) or tokens.uniform(router)."
        )


def _gpus(device: torch.device) -> list[torch.device]:
    """The devices whose random numbers have a state of their own."""
    return [] if device.type == "cpu" else [device]


def _recorded(policy: PolicyFunction, decisions: list[Decision]) -> PolicyFunction:
    """The policy, which adds each of its decisions to the list."""

    def recorded(router: Router, routing: Routing) -> Routing | None:
        before = Routing(*(tensor.clone() for tensor in routing))
        after = policy(router, routing)
        decisions.append(Decision(before, after))
        return after

    return recorded


def _alike(decision: Decision, repeated: Decision) -> bool:
    """Whether two decisions are equal, or were made of other logits."""
    if not torch.equal(decision.before.logits_TE, repeated.before.logits_TE):
        return True
    if decision.after is None or repeated.after is None:
        return decision.after is repeated.after
    if not torch.equal(decision.after.index_TK, repeated.after.index_TK):
        return False
    return torch.equal(decision.after.weights_TK, repeated.after.weights_TK)
