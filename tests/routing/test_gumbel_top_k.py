"""Gumbel-top-k draws experts like sampling without replacement (section 2.1 of the paper)."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare

from moe_lab.errors import RoutingError
from moe_lab.routing import GumbelTopK, Routing, family_of, find_routers, gumbel, routed
from moe_lab.routing.gumbel_top_k import NoisyTokens, choice_margin
from tests.support.models import make_model, small_model

DRAWS = 20_000


def route(policy, router, logits_E, count):
    logits_TE = logits_E.expand(count, -1)
    index_TK = logits_TE.topk(2, dim=-1).indices
    weights_TK = router.weights(logits_TE, index_TK)
    token = torch.arange(count)
    policy.expect(NoisyTokens(token, token * 0 + 5, token * 0, token * 0 + 1, token))
    return policy(router, Routing(logits_TE, weights_TK, index_TK))


def test_frequencies_are_those_of_sampling_without_replacement():
    # Chi-square over all 20 ordered pairs of 5 experts; a right sampler fails with probability 1e-6.
    router = find_routers(make_model("olmoe", num_experts=5))[0]
    logits = torch.tensor([1.0, 0.3, -0.5, 0.0, 0.8])
    temperature = 0.7
    routing = route(GumbelTopK([temperature], seed=0), router, logits, DRAWS)
    probs = (logits.double() / temperature).softmax(-1)
    pairs = list(permutations(range(5), 2))
    expected = [float(probs[a] * probs[b] / (1 - probs[a])) * DRAWS for a, b in pairs]
    drawn = [int(((routing.index_TK[:, 0] == a) & (routing.index_TK[:, 1] == b)).sum()) for a, b in pairs]
    assert sum(drawn) == DRAWS
    assert chisquare(drawn, expected).pvalue > 1e-6


def test_weights_come_from_clean_logits_unless_asked_otherwise():
    router = find_routers(make_model("qwen3_moe"))[0]
    logits = torch.linspace(-1, 1, 7)
    clean = route(GumbelTopK([2.0], seed=0), router, logits, 50)
    probs_TK = logits.softmax(-1)[clean.index_TK]
    assert torch.allclose(clean.weights_TK, probs_TK / probs_TK.sum(-1, keepdim=True))
    perturbed = route(GumbelTopK([2.0], seed=0, perturbed_weights=True), router, logits, 50)
    assert torch.equal(perturbed.index_TK, clean.index_TK)
    # Weights of perturbed logits fall with the noisy rank; clean ones need not.
    assert (perturbed.weights_TK[:, 0] >= perturbed.weights_TK[:, 1]).all()
    assert (clean.weights_TK[:, 0] < clean.weights_TK[:, 1]).any()


def test_tokens_that_are_not_named_keep_their_routing():
    router = find_routers(make_model("olmoe"))[0]
    logits_TE = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    index_TK = logits_TE.topk(2, dim=-1).indices
    weights_TK = torch.rand(6, 2)
    policy = GumbelTopK([5.0], seed=0)
    chosen = torch.tensor([1, 4])
    policy.expect(NoisyTokens(chosen, chosen * 0, chosen * 0, chosen * 0 + 1, chosen))
    routing = policy(router, Routing(logits_TE, weights_TK, index_TK))
    others = [0, 2, 3, 5]
    assert torch.equal(routing.index_TK[others], index_TK[others])
    assert torch.equal(routing.weights_TK[others], weights_TK[others])
    assert policy.decisions[1] == 2


def test_half_precision_logits_get_noise_in_float32():
    # In float16 a uniform number near 1 rounds to 1 and the noise to infinity; 60,000 draws would show it.
    router = find_routers(make_model("olmoe"))[0]
    logits_TE = torch.zeros(60_000, 8, dtype=torch.float16)
    token = torch.arange(60_000)
    policy = GumbelTopK([1.0], seed=0)
    policy.expect(NoisyTokens(token, token * 0, token * 0, token * 0 + 1, token))
    routing = policy(
        router, Routing(logits_TE, torch.zeros(60_000, 2, dtype=torch.float16), torch.zeros(60_000, 2).long())
    )
    counts = torch.bincount(routing.index_TK.flatten(), minlength=8).double()
    # All 8 experts are alike: each is in 2/8 of the draws, within 6 standard errors (odds 2e-9 each).
    assert ((counts / 60_000 - 0.25).abs() < 6 * (0.25 * 0.75 / 60_000) ** 0.5).all()
    assert routing.weights_TK.dtype == torch.float16


def test_choice_margin_is_that_of_a_loop():
    scores_NE = torch.randn(40, 9, generator=torch.Generator().manual_seed(1))
    index_NK = torch.stack(
        [torch.randperm(9, generator=torch.Generator().manual_seed(n))[:3] for n in range(40)]
    )
    for scores_E, index_K, margin in zip(
        scores_NE, index_NK, choice_margin(scores_NE, index_NK), strict=True
    ):
        last = min(float(scores_E[e]) for e in index_K)
        best = max(float(scores_E[e]) for e in range(9) if e not in index_K)
        assert float(margin) == pytest.approx(abs(last - best), rel=1e-6)
    assert choice_margin(scores_NE, torch.arange(9).expand(40, 9)).count_nonzero() == 0


@pytest.mark.parametrize("model_type", ["olmoe", "deepseek_v3", "gpt_oss"])
def test_margin_scaled_noise_is_that_of_a_loop(model_type):
    """DeepSeek-V3 chooses by sigmoids plus a bias, within groups."""
    router = find_routers(small_model(model_type))[1]
    experts, k, temperature = router.module.weight.shape[0], 2, 1.7
    logits_TE = torch.randn(60, experts, generator=torch.Generator().manual_seed(2))
    clean_TK = router.choose(router.scores(logits_TE), k)
    policy = GumbelTopK([0, temperature], seed=4, antithetic=True, margin_scaled=True)
    token = torch.arange(60)
    policy.expect(NoisyTokens(token, token * 0 + 5, token * 0, token % 4 + 1, token))
    routing = policy(router, Routing(logits_TE, router.weights(logits_TE, clean_TK), clean_TK))
    for t in range(60):
        scores_E = router.scores(logits_TE[t : t + 1])[0]
        last = min(float(scores_E[e]) for e in clean_TK[t])
        best = max(float(scores_E[e]) for e in range(experts) if e not in clean_TK[t])
        noise_E = gumbel(4, 5, 0, t % 4 + 1, 1, [t], experts, antithetic=True)[0]
        noisy_E = [
            float(scores_E[e]) + temperature * abs(last - best) * float(noise_E[e]) for e in range(experts)
        ]
        expected_K = router.choose(torch.tensor([noisy_E]), k)[0]
        assert set(routing.index_TK[t].tolist()) == set(expected_K.tolist()), t
    assert (routing.index_TK.sort().values != clean_TK.sort().values).any()


def test_the_best_expert_not_chosen_passes_the_last_with_a_known_probability():
    # Two experts, one chosen: 20,000 draws, within 5.5 standard errors of 1 / (1 + exp(1 / temperature)) (odds 4e-8).
    router = find_routers(make_model("olmoe", num_experts=2))[0]
    logits_TE = torch.tensor([[0.3, 0.1]]).expand(DRAWS, -1)
    token = torch.arange(DRAWS)
    policy = GumbelTopK([0.8], seed=0, margin_scaled=True)
    policy.expect(NoisyTokens(token, token * 0, token * 0, token * 0 + 1, token))
    first = torch.zeros(DRAWS, 1, dtype=torch.long)
    passed = float(policy(router, Routing(logits_TE, torch.ones(DRAWS, 1), first)).index_TK.double().mean())
    expected = 1 / (1 + math.exp(1 / 0.8))
    assert abs(passed - expected) < 5.5 * (expected * (1 - expected) / DRAWS) ** 0.5


def test_routers_are_known_by_class_not_by_name():
    impostor = type("OlmoeTopKRouter", (torch.nn.Linear,), {})(2, 2)
    assert family_of(impostor) is None
    heir = type("MyRouter", (type(find_routers(make_model("olmoe"))[0].module),), {})
    assert family_of(heir.__new__(heir)).name == "OLMoE"


def test_a_policy_that_was_told_of_no_token_raises(olmoe):
    with pytest.raises(RoutingError, match=r"moe_lab\.RoE"), routed(olmoe, GumbelTopK([0.5] * 4, seed=0)):
        olmoe(torch.tensor([[1, 2, 3]]))
