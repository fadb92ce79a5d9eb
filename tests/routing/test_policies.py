"""Collaboration-constrained routing against a loop over tokens, in families with different rules.

Broken by: a first expert that is not the best one, partners of another expert or layer, weights by another rule than the
family's, a token that is touched though its experts are all partners.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from moe_lab.routing import record, routed
from moe_lab.routing.policies import PartnersOnly, Remix, Steered, partners_of
from tests.support.models import small_model
from tests.support.tiers import by_family

FAMILIES = [
    "olmoe",
    "mixtral",
    "qwen3_moe",
    "gpt_oss",
    "deepseek",
    "qwen2_moe",
    "minimax_m2",
    "ernie4_5_moe",
    "phimoe",
]
IDS = torch.randint(1, 60, (3, 20), generator=torch.Generator().manual_seed(0))


def sizes(model: Any) -> tuple[int, int, int]:
    """(layers, experts, experts per token)"""
    with torch.no_grad(), record(model) as routes:
        model(IDS)
    return len(routes.indices), routes.logits[0].shape[-1], routes.indices[0].shape[-1]


def random_pairs(L: int, E: int) -> torch.Tensor:
    half = torch.randint(0, 1000, (L, E, E), generator=torch.Generator().manual_seed(1))
    return (half + half.mT) * (1 - torch.eye(E, dtype=torch.long))


def slow_partners(pairs_EE: torch.Tensor, expert: int, count: int) -> set[int]:
    others = [e for e in range(len(pairs_EE)) if e != expert]
    others.sort(key=lambda e: (-int(pairs_EE[expert, e]), e))
    return {expert, *others[:count]}


@pytest.mark.parametrize("family", by_family(FAMILIES))
def test_every_token_takes_its_first_expert_and_the_best_partners_of_it(family: str) -> None:
    model = small_model(family)
    L, E, K = sizes(model)
    pairs = random_pairs(L, E)
    count = max(K - 1, 2)
    policy, seen = PartnersOnly(partners_of(pairs, count)), []

    def check(router: Any, routing: Any) -> Any:
        changed = policy(router, routing)
        scores = router.scores(routing.logits_TE)
        after = changed or routing
        for t in range(len(scores)):
            own = routing.index_TK[t].tolist()
            first = max(own, key=lambda e: float(scores[t, e]))
            allowed = slow_partners(pairs[router.layer], first, count)
            if set(own) <= allowed:
                assert after.index_TK[t].tolist() == own
                assert torch.equal(after.weights_TK[t], routing.weights_TK[t])
                continue
            best = sorted(allowed, key=lambda e: -float(scores[t, e]))[:K]
            assert after.index_TK[t].tolist() == best and best[0] == first
            weights = router.weights(routing.logits_TE[t : t + 1], torch.tensor([best]))[0]
            assert torch.allclose(after.weights_TK[t], weights.to(after.weights_TK.dtype), atol=1e-6)
            seen.append(t)
        return changed

    with torch.no_grad(), routed(model, check):
        model(IDS)
    assert policy.decisions == (len(seen), L * IDS.numel())
    assert 0 < len(seen) < L * IDS.numel()


@pytest.mark.parametrize("family", by_family(FAMILIES))
def test_all_others_as_partners_are_the_untouched_model_bit_for_bit(family: str) -> None:
    model = small_model(family)
    L, E, _ = sizes(model)
    with torch.no_grad():
        plain = model(IDS).logits
        with routed(model, PartnersOnly(partners_of(random_pairs(L, E), E - 1))):
            assert torch.equal(model(IDS).logits, plain)
        with routed(model, PartnersOnly(partners_of(random_pairs(L, E), 2))):
            assert not torch.equal(model(IDS).logits, plain)
        assert torch.equal(model(IDS).logits, plain)


def test_partners_are_counted_without_the_expert_itself_and_ties_go_to_the_lower_number() -> None:
    pairs = torch.tensor([[[9, 1, 1, 3], [1, 0, 0, 0], [1, 0, 5, 0], [3, 0, 0, 0]]])
    assert partners_of(pairs, 2)[0].int().tolist() == [[1, 1, 0, 1], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 0, 1]]


@pytest.mark.parametrize("family", ["olmoe", "gpt_oss"])
def test_steered_experts_are_in_or_out_and_changed_choices_are_counted(family: str) -> None:
    model = small_model(family)
    L, E, K = sizes(model)
    sign_LE = torch.zeros(L, E, dtype=torch.long)
    sign_LE[1, 0], sign_LE[1, 2] = 1, -1
    with torch.no_grad(), record(model) as own:
        model(IDS)
    policy = Steered(sign_LE)
    with torch.no_grad(), routed(model, policy), record(model) as routes:
        model(IDS)
    assert torch.equal(routes.indices[0], own.indices[0])
    chosen_TK = routes.indices[1]
    assert (chosen_TK == 0).any(dim=-1).all() and not (chosen_TK == 2).any()
    before_TK = own.indices[1]
    changed = [set(new) != set(old) for new, old in zip(chosen_TK.tolist(), before_TK.tolist(), strict=True)]
    assert policy.decisions == (sum(changed), L * IDS.numel())


def test_a_mixture_needs_gradients_if_a_layer_of_it_does() -> None:
    probs = {layer: torch.full((1, 1, 4), 0.25) for layer in (0, 1)}
    assert not Remix(probs).needs_grad
    probs[1].requires_grad_()
    assert Remix(probs).needs_grad
    with torch.no_grad():
        assert not Remix(probs).needs_grad
