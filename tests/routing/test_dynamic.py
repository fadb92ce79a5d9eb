"""Top-p routing against a loop over tokens, in families with other rules than those of the methods' own tests.

Broken by: weights of another number of experts, an expert beyond the first that reaches p, a softmax over sigmoids, tokens of an earlier pass
that are told apart from padding by the mask of this one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from moe_lab.routing import Router, Routing, find_routers, routed
from moe_lab.routing.dynamic import TopP, router_shares
from tests.support.models import small_model
from tests.support.tiers import by_family

FAMILIES = [
    "qwen3_moe",
    "deepseek",
    "minimax_m2",
    "ernie4_5_moe",
    "deepseek_v2",
    "dbrx",
    "llama4_text",
]
IDS = torch.randint(1, 60, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", by_family(FAMILIES))
def test_every_token_takes_its_first_experts_that_reach_p(family: str) -> None:
    model, policy, total = small_model(family), TopP(0.5, 4), 0
    calls = 0

    def check(router: Router, routing: Routing) -> Routing | None:
        nonlocal total, calls
        changed = policy(router, routing)
        assert changed is not None
        for token, logits_E in enumerate(routing.logits_TE):
            order = router.choose(router.scores(logits_E[None]), 4)[0].tolist()
            shares = router_shares(router, logits_E[None])[0]
            count = next((n for n in (1, 2, 3) if float(shares[order[:n]].sum()) >= 0.5), 4)
            index, weights = changed.index_TK[token], changed.weights_TK[token]
            assert index[:count].tolist() == order[:count]
            own = router.weights(logits_E[None], torch.tensor([order[:count]]))[0]
            torch.testing.assert_close(weights[:count], own.to(weights.dtype))
            assert not weights[count:].any() and len(set(index.tolist())) == len(index)
            total, calls = total + count, calls + 1
        return changed

    with torch.no_grad(), routed(model, check):
        model(IDS)
    assert policy.counts == {"chosen_experts": total, "routing_decisions": calls}
    assert calls < total < 4 * calls, "all tokens take equally many experts: the test says nothing"


@pytest.mark.parametrize("family", ["olmoe", "deepseek_v3"])
def test_shares_are_the_probabilities_of_the_familys_kind(family: str) -> None:
    router = find_routers(small_model(family))[0]
    experts = router.module.weight.shape[0]
    logits_TE = torch.randn(5, experts, generator=torch.Generator().manual_seed(1))
    sigmoid_TE = 1 / (1 + (-logits_TE).exp())
    expected = {"olmoe": logits_TE.exp(), "deepseek_v3": sigmoid_TE}[family]  # without the bias for choosing
    shares = router_shares(router, logits_TE)
    torch.testing.assert_close(shares, expected / expected.sum(dim=-1, keepdim=True))


def test_padding_is_not_counted() -> None:
    model, policy = small_model("olmoe"), TopP(1.0, 2)
    real_T = torch.arange(IDS.numel()) >= 5

    def ask(mask: Any) -> dict[str, int]:
        policy.expect(mask)
        with torch.no_grad(), routed(model, policy):
            model(IDS)
        return policy.counts

    assert ask(real_T) == {"chosen_experts": 2 * 4 * 13, "routing_decisions": 4 * 13}
    assert ask(None) == {"chosen_experts": 2 * 4 * 31, "routing_decisions": 4 * 31}
