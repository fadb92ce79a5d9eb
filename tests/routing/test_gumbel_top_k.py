"""Gumbel-top-k draws experts like sampling without replacement (section 2.1 of the paper)."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare

from moe_lab.errors import RoutingError
from moe_lab.routing import GumbelTopK, Routing, family_of, find_routers, routed
from moe_lab.routing.gumbel_top_k import NoisyTokens
from tests.support.models import make_model

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


def test_routers_are_known_by_class_not_by_name():
    impostor = type("OlmoeTopKRouter", (torch.nn.Linear,), {})(2, 2)
    assert family_of(impostor) is None
    heir = type("MyRouter", (type(find_routers(make_model("olmoe"))[0].module),), {})
    assert family_of(heir.__new__(heir)).name == "OLMoE"


def test_a_policy_that_was_told_of_no_token_raises(olmoe):
    with pytest.raises(RoutingError, match=r"moe_lab\.RoE"), routed(olmoe, GumbelTopK([0.5] * 4, seed=0)):
        olmoe(torch.tensor([[1, 2, 3]]))
