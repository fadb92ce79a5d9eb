"""Whether a policy decides alike in two equal passes.

A policy that draws random numbers, or that counts its calls, gives other results in each run of the same command.
"""

from __future__ import annotations

from typing import Any

import torch

from moe_lab.routing import PolicyFunction, Router, Routing
from moe_lab.routing.override import override

TOKENS = 16
"""The length of the passes: enough for a token whose drawn experts differ."""


def repeats_itself(model: Any, policy: PolicyFunction) -> bool:
    """Whether a policy returns the same decisions in two passes over the same tokens.

    Decisions are compared where the router's logits are the same in both passes, since kernels of a GPU may round
    differently. The state of torch's random numbers is put back.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    device = model.get_input_embeddings().weight.device
    ids = torch.arange(TOKENS, device=device)[None] % vocabulary
    passes = []
    with torch.random.fork_rng(_gpus(device)), torch.inference_mode():
        for _ in range(2):
            decisions: list[Decision] = []
            with override(model, _recorded(policy, decisions)):
                model(ids, use_cache=False)
            passes.append(decisions)
    first, second = passes
    if len(first) != len(second):
        return False
    return all(_alike(one, other) for one, other in zip(first, second, strict=True))


Decision = tuple[Routing, Routing | None]
"""What a policy got, and what it returned."""


def _gpus(device: torch.device) -> list[torch.device]:
    """The devices whose random numbers have a state of their own."""
    return [] if device.type == "cpu" else [device]


def _recorded(policy: PolicyFunction, decisions: list[Decision]) -> PolicyFunction:
    def recorded(router: Router, routing: Routing) -> Routing | None:
        given = Routing(*(tensor.clone() for tensor in routing))
        changed = policy(router, routing)
        decisions.append((given, changed))
        return changed

    return recorded


def _alike(one: Decision, other: Decision) -> bool:
    """Whether two decisions are equal, or were made of other logits."""
    (given, changed), (other_given, other_changed) = one, other
    if not torch.equal(given.logits_TE, other_given.logits_TE):
        return True
    if changed is None or other_changed is None:
        return changed is other_changed
    same_experts = torch.equal(changed.index_TK, other_changed.index_TK)
    return same_experts and torch.equal(changed.weights_TK, other_changed.weights_TK)
