"""Keyed noise is a written-down function of its keys; Gumbel-top-k samples experts without
replacement (section 2.1).

Broken by: noise that depends on the process, the device or the batch.
"""

import math
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare

from moe_lab.errors import RoutingError
from moe_lab.routing import GumbelTopK, Routing, family_of, find_routers, routed
from moe_lab.routing import noise as noise_module
from moe_lab.routing.noise import document_key, gumbel
from moe_lab.routing.samples import NoisyTokens
from tests.support.models import make_model
from tests.support.slow_routing import noisy_tokens, slow_hash


def uniform_in_python(*keys):
    """The docstring's hash in Python's unbounded integers."""
    return ((slow_hash(*keys) >> 11) + 0.5) / 2**53


def gumbel_in_python(seed, document, repeat, row, layer, position, expert):
    return -math.log(
        -math.log(uniform_in_python(seed, document, repeat, row, layer, position, expert))
    )


def test_golden_values():
    # These must never change: stored results depend on them.
    noise = gumbel(seed=0, document=123, repeat=0, row=1, layer=2, positions=[0, 7], n_experts=3)
    assert noise.dtype == torch.float32
    assert noise.shape == (2, 3)
    expected = torch.tensor(GOLDEN)
    assert torch.equal(noise, expected), noise.tolist()
    assert document_key([1, 2, 3]) == GOLDEN_KEY, document_key([1, 2, 3])


GOLDEN = [
    [1.3868893384933472, -1.5009047985076904, 1.3372769355773926],
    [0.590778112411499, 0.45478180050849915, -0.09794814139604568],
]
GOLDEN_KEY = -5405627362230748553


@pytest.mark.parametrize("document", [0, 5, -3, 2**63 - 1, -(2**63)])
def test_equals_the_written_down_hash(document):
    noise = gumbel(7, document, 1, 31, 5, [0, 3, 1999], 6)
    for i, position in enumerate([0, 3, 1999]):
        for expert in range(6):
            expected = gumbel_in_python(7, document, 1, 31, 5, position, expert)
            assert float(noise[i, expert]) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("row", [0, 1, 2, 3, 4, 30, 31, 32])
def test_antithetic_rows_share_a_uniform_number(row):
    """Row 2j has the noise of 1 - u, where u is the number of row 2j-1.

    All other rows have the noise of their own number.
    """
    mirrored = row in (2, 4, 30, 32)
    noise = gumbel(7, -5, 1, row, 5, [0, 3, 1999], 6, antithetic=True)
    for i, position in enumerate([0, 3, 1999]):
        for expert in range(6):
            u = uniform_in_python(7, -5, 1, row - mirrored, 5, position, expert)
            expected = -math.log(-math.log(1 - u if mirrored else u))
            assert float(noise[i, expert]) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    if not mirrored:
        assert torch.equal(noise, gumbel(7, -5, 1, row, 5, [0, 3, 1999], 6))


def test_the_noise_of_a_layer_is_the_same_however_many_are_computed_together(monkeypatch):
    router = find_routers(make_model("olmoe"))[0]
    logits_TE = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    token = torch.arange(40)

    def routed_by(at_once):
        monkeypatch.setattr(noise_module, "AT_ONCE_BYTES", at_once)
        policy = GumbelTopK([0, 0.7, 0, 0.7, 0.7], seed=3, antithetic=True)
        policy.expect(NoisyTokens(token, token + 5, token % 2, token % 5 + 1, token))
        decisions = []
        held = []
        for layer in (1, 3, 4):
            layer_router = replace(router, layer=layer)
            routing = Routing(logits_TE, torch.ones(40, 2), torch.zeros(40, 2).long())
            decisions.append(policy(layer_router, routing))
            held.append(len(policy._noise))
        return torch.stack([decision.index_TK for decision in decisions]), held

    together, held_together = routed_by(2**24)
    decisions_alone, held_alone = routed_by(1)
    assert torch.equal(together, decisions_alone)
    assert held_together == [3, 3, 3]
    assert held_alone == [1, 1, 1]
    assert (together[0] != together[1]).any()


def test_document_key_tells_prompts_apart():
    prompts = [[1, 2, 3], [1, 2], [3, 2, 1], [1, 2, 3, 0], [258, 3], [2, 1, 3]]
    assert len({document_key(prompt) for prompt in prompts}) == len(prompts)


DRAWS = 20_000


def test_frequencies_are_those_of_sampling_without_replacement():
    # Chi-square over all 20 ordered pairs of 5 experts.
    # A right sampler fails with probability 1e-6.
    router = find_routers(make_model("olmoe", num_experts=5))[0]
    logits = torch.tensor([1.0, 0.3, -0.5, 0.0, 0.8])
    temperature = 0.7
    policy = GumbelTopK([temperature], seed=0)
    logits_TE = logits.expand(DRAWS, -1)
    policy.expect(noisy_tokens(DRAWS))
    routing = policy(router, Routing(logits_TE, torch.ones(DRAWS, 2), torch.zeros(DRAWS, 2).long()))
    probs = (logits.double() / temperature).softmax(-1)
    pairs = list(permutations(range(5), 2))
    expected = [float(probs[a] * probs[b] / (1 - probs[a])) * DRAWS for a, b in pairs]
    drawn = [
        int(((routing.index_TK[:, 0] == a) & (routing.index_TK[:, 1] == b)).sum()) for a, b in pairs
    ]
    assert sum(drawn) == DRAWS
    assert chisquare(drawn, expected).pvalue > 1e-6


def test_decisions_are_counted_as_sets_of_experts():
    """Over layers and passes with other tokens.

    Some of the tokens choose the same experts in another order.
    """
    router = find_routers(make_model("olmoe"))[0]
    policy = GumbelTopK([0.4, 0.0, 0.4], seed=0)
    generator = torch.Generator().manual_seed(0)
    changed = decided = 0
    for count in (7, 4):
        chosen = torch.arange(0, count, 2)
        policy.expect(NoisyTokens(chosen, chosen, chosen * 0, chosen * 0 + 1, chosen))
        for layer in range(3):
            logits_TE = torch.randn(count, 8, generator=generator)
            clean = Routing(
                logits_TE, torch.ones(count, 2), logits_TE.topk(2, dim=-1).indices.flip(-1)
            )
            decisions = policy(replace(router, layer=layer), clean)
            if decisions is not None:
                pairs = [
                    (set(decisions.index_TK[t].tolist()), set(clean.index_TK[t].tolist()))
                    for t in chosen
                ]
                changed = changed + sum(
                    clean_experts != noisy_experts for clean_experts, noisy_experts in pairs
                )
                decided = decided + len(pairs)
    counts = {"changed_decisions": changed, "noisy_decisions": decided}
    assert policy.counts() == counts
    assert 0 < changed < decided == 2 * (4 + 2)
    assert policy.counts() == counts, "asking counts nothing twice"


@pytest.mark.parametrize("antithetic", [False, True])
def test_the_next_tokens_of_the_same_samples_have_the_noise_of_their_positions(antithetic):
    router = find_routers(make_model("olmoe"))[0]
    token = torch.arange(5)
    # with equal logits any temperature would choose the same experts
    routing = Routing(
        torch.linspace(0, 20, 8).expand(5, 8), torch.ones(5, 2), torch.zeros(5, 2).long()
    )

    def routed_by(policy, tokens):
        policy.expect(tokens)
        return [policy(replace(router, layer=layer), routing).index_TK for layer in (0, 1)]

    first = NoisyTokens(token, token + 9, token % 2, token % 3 + 1, token)
    policies = [GumbelTopK([1.0, hot], seed=3, antithetic=antithetic) for hot in (1.0, 7.0)]
    for policy in policies:
        routed_by(policy, first)
    for step in (1, 2):
        for policy in policies:
            fresh = NoisyTokens(token, token + 9, token % 2, token % 3 + 1, token + step)
            second_policy = GumbelTopK(policy.temperatures, seed=3, antithetic=antithetic)
            pairs = zip(
                routed_by(policy, first.at(token + step)),
                routed_by(second_policy, fresh),
                strict=True,
            )
            for noise, later_noise in pairs:
                assert torch.equal(noise, later_noise)


def test_half_precision_logits_get_noise_in_float32():
    # In float16 a uniform number near 1 rounds to 1, and its noise is infinite.
    # 60,000 draws would show it.
    router = find_routers(make_model("olmoe"))[0]
    logits_TE = torch.zeros(60_000, 8, dtype=torch.float16)
    policy = GumbelTopK([1.0], seed=0)
    policy.expect(noisy_tokens(60_000, document=0))
    weights_TK = torch.zeros(60_000, 2, dtype=torch.float16)
    routing = policy(router, Routing(logits_TE, weights_TK, weights_TK.long()))
    counts = torch.bincount(routing.index_TK.flatten(), minlength=8).double()
    # All 8 experts are alike: each is in 2/8 of the draws, within 6 standard errors.
    # The odds against are 2e-9 for each expert.
    assert ((counts / 60_000 - 0.25).abs() < 6 * (0.25 * 0.75 / 60_000) ** 0.5).all()
    assert routing.weights_TK.dtype == torch.float16


def test_routers_are_known_by_class_not_by_name():
    impostor = type("OlmoeTopKRouter", (torch.nn.Linear,), {})(2, 2)
    assert family_of(impostor) is None
    heir = type("MyRouter", (type(find_routers(make_model("olmoe"))[0].module),), {})
    assert family_of(heir.__new__(heir)).name == "OLMoE"


def test_noise_raises_in_a_pass_whose_tokens_it_does_not_know(olmoe):
    with (
        pytest.raises(RoutingError, match=r"moe_lab\.RoE"),
        routed(olmoe, GumbelTopK([0.5] * 4, seed=0)),
    ):
        olmoe(torch.tensor([[1, 2, 3]]))
