"""Samples that take other experts, against the family's rule on the experts that a loop chooses.

Broken by: a token that is no sample and changes, weights of other experts or of all of them, experts of weight 0 that
are not told apart from chosen ones, a pass of which nobody said what its samples are.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from moe_lab.errors import RoutingError
from moe_lab.routing import OtherExperts, Router, Routing, routed
from moe_lab.routing.noise import NoisyTokens
from tests.support.models import small_model
from tests.support.tiers import by_family

FAMILIES = ["olmoe", "mixtral", "gpt_oss", "deepseek_v3", "phimoe"]
IDS = torch.randint(1, 60, (2, 9), generator=torch.Generator().manual_seed(0))
SAMPLES = torch.tensor([3, 4, 11, 17])
COUNTS = (1, 2, 5)


def tokens() -> NoisyTokens:
    return NoisyTokens(SAMPLES, *[torch.arange(len(SAMPLES))] * 4)


def last_experts(count: int) -> Any:
    """The experts with the lowest scores, the lowest first."""

    def choose(router: Router, own: Routing, keys: NoisyTokens) -> torch.Tensor:
        assert len(own.logits_TE) == len(keys.index) == len(SAMPLES)
        return router.scores(own.logits_TE).topk(count, dim=-1, largest=False).indices

    return choose


@pytest.mark.parametrize("family", by_family(FAMILIES))
@pytest.mark.parametrize("count", COUNTS)
def test_samples_take_the_chosen_experts_with_the_weights_of_the_family(count: int, family: str) -> None:
    model = small_model(family)
    policy, seen = OtherExperts(last_experts(count)), []
    policy.expect(tokens())

    def check(router: Router, routing: Routing) -> Routing | None:
        changed = policy(router, routing)
        assert changed is not None
        width = max(count, routing.index_TK.shape[-1])
        assert changed.index_TK.shape == changed.weights_TK.shape == (IDS.numel(), width)
        for token in range(IDS.numel()):
            if token in SAMPLES:
                order = router.scores(routing.logits_TE[token][None])[0].argsort()[:count]
                weights = router.weights(routing.logits_TE[token][None], order[None])[0]
            else:
                order, weights = routing.index_TK[token], routing.weights_TK[token]
            experts = changed.index_TK[token]
            assert experts[: len(order)].tolist() == order.tolist()
            assert len(set(experts.tolist())) == width
            torch.testing.assert_close(changed.weights_TK[token, : len(order)], weights)
            assert not changed.weights_TK[token, len(order) :].any()
        seen.append(router.layer)
        return changed

    with torch.no_grad(), routed(model, check):
        model(IDS)
    assert seen == list(range(len(seen))) and seen


def test_a_pass_without_samples_is_the_models_own_and_one_that_nobody_announced_is_refused() -> None:
    model = small_model("olmoe")
    policy = OtherExperts(last_experts(2))
    with torch.no_grad():
        plain = model(IDS).logits
        with pytest.raises(RoutingError, match="expect"), routed(model, policy):
            model(IDS)
        policy.expect(None)
        with routed(model, policy):
            assert torch.equal(model(IDS).logits, plain)
