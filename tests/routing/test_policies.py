"""Policies against loops over tokens, in families with different rules: collaboration-constrained,
steered and top-p routing, samples that take other experts.

Broken by: a first expert that is not the best one, partners of another expert or layer, weights
by another rule than the family's, a token that is touched though its experts are all partners
or though it is no sample; an expert beyond the first that reaches p, a softmax over sigmoids,
padding that is counted, a pass whose samples are unknown.
"""

import math
from typing import Any

import pytest
import torch

from moe_lab.errors import RoutingError
from moe_lab.methods.scmoe import of_rank
from moe_lab.routing import GumbelTopK, OtherExperts, Router, Routing, find_routers, record, routed
from moe_lab.routing.dynamic import TopP, router_shares
from moe_lab.routing.policies import PartnersOnly, Steered, partners_of
from moe_lab.routing.remix import Places, Remix
from moe_lab.routing.samples import NoisyTokens
from tests.support.models import small_model
from tests.support.slow_routing import SPECS, route, routers_of
from tests.support.tiers import by_family

PARTNERED = (
    "olmoe mixtral qwen3_moe gpt_oss deepseek qwen2_moe minimax_m2 ernie4_5_moe phimoe".split()
)
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
    other_experts = [e for e in range(len(pairs_EE)) if e != expert]
    other_experts.sort(key=lambda e: (-int(pairs_EE[expert, e]), e))
    return {expert, *other_experts[:count]}


@pytest.mark.parametrize("family", by_family(PARTNERED))
def test_every_token_takes_its_first_expert_and_the_best_partners_of_it(family):
    model = small_model(family)
    L, E, K = sizes(model)
    pairs = random_pairs(L, E)
    count = max(K - 1, 2)
    policy = PartnersOnly(partners_of(pairs, count))
    seen = []

    def check(router: Any, routing: Any) -> Any:
        changed = policy(router, routing)
        scores = router.scores(routing.logits_TE)
        after = changed or routing
        for t in range(len(scores)):
            own_experts = routing.index_TK[t].tolist()
            first = max(own_experts, key=lambda e: float(scores[t, e]))
            allowed = slow_partners(pairs[router.layer], first, count)
            if set(own_experts) <= allowed:
                assert after.index_TK[t].tolist() == own_experts
                assert torch.equal(after.weights_TK[t], routing.weights_TK[t])
                continue
            best = sorted(allowed, key=lambda e: -float(scores[t, e]))[:K]
            assert after.index_TK[t].tolist() == best
            assert best[0] == first
            weights = router.weights(routing.logits_TE[t : t + 1], torch.tensor([best]))[0]
            assert torch.allclose(
                after.weights_TK[t], weights.to(after.weights_TK.dtype), atol=1e-6
            )
            seen.append(t)
        return changed

    with torch.no_grad(), routed(model, check):
        model(IDS)
    assert policy.counts() == {
        "constrained_decisions": len(seen),
        "routing_decisions": L * IDS.numel(),
    }
    assert 0 < len(seen) < L * IDS.numel()


def test_partners_are_counted_without_the_expert_itself_and_ties_go_to_the_lower_number():
    pairs = torch.tensor([[[9, 1, 1, 3], [1, 0, 0, 0], [1, 0, 5, 0], [3, 0, 0, 0]]])
    assert partners_of(pairs, 2)[0].int().tolist() == [
        [1, 1, 0, 1],
        [1, 1, 1, 0],
        [1, 1, 1, 0],
        [1, 1, 0, 1],
    ]


@pytest.mark.parametrize("family", ["olmoe", "gpt_oss"])
def test_steered_experts_are_in_or_out_and_changed_choices_are_counted(family):
    model = small_model(family)
    L, E, K = sizes(model)
    sign_LE = torch.zeros(L, E, dtype=torch.long)
    sign_LE[1, 0], sign_LE[1, 2] = 1, -1
    with torch.no_grad(), record(model) as model_record:
        model(IDS)
    policy = Steered(sign_LE)
    with torch.no_grad(), routed(model, policy), record(model) as routes:
        model(IDS)
    assert torch.equal(routes.indices[0], model_record.indices[0])
    chosen_TK = routes.indices[1]
    assert (chosen_TK == 0).any(dim=-1).all()
    assert not (chosen_TK == 2).any()
    before_TK = model_record.indices[1]
    changed = [
        set(new) != set(old)
        for new, old in zip(chosen_TK.tolist(), before_TK.tolist(), strict=True)
    ]
    assert policy.counts() == {
        "constrained_decisions": sum(changed),
        "routing_decisions": L * IDS.numel(),
    }


def forced_by_hand(scores: list[float], sign: list[int]) -> list[float]:
    """The scores of one token, with forced experts 0.01 outside their range."""
    forced = []
    for score, expert_sign in zip(scores, sign, strict=True):
        if expert_sign > 0:
            score = max(scores) + 0.01
        if expert_sign < 0:
            score = min(scores) - 0.01
        forced.append(score)
    return forced


@pytest.mark.parametrize("family", by_family(["olmoe", "gpt_oss", "mixtral", "gemma4_text"]))
def test_steered_experts_have_the_familys_weights_of_their_forced_scores(family):
    """Against one token at a time in Python's floats; Gemma-4's router returns probabilities."""
    model = small_model(family)
    _, E, K = sizes(model)
    spec = SPECS[model.config.model_type]
    slow_router, block = routers_of(model)[0]
    sign = [0] * E
    sign[0] = 1
    sign[2] = -1
    policy = Steered(torch.tensor([sign]))
    compared = []

    def check(router: Router, routing: Routing) -> Routing | None:
        if router.layer != 0:
            return None
        changed = policy(router, routing)
        for t, logits in enumerate(routing.logits_TE.tolist()):
            scores = [math.log(p) for p in logits] if spec.logits_are_probabilities else logits
            forced = forced_by_hand(scores, sign)
            moved = [after - before for after, before in zip(forced, scores, strict=True)]
            experts, weights = route(
                spec, model.config, slow_router, block, logits, moved, 1.0, K, perturbed=True
            )
            assert changed.index_TK[t].tolist() == experts
            assert changed.weights_TK[t].tolist() == pytest.approx(weights, abs=1e-5)
            compared.append(t)
        return changed

    with torch.no_grad(), routed(model, check):
        model(IDS)
    assert len(compared) == IDS.numel()


def test_a_mixture_needs_gradients_if_a_layer_of_it_does():
    probs = {layer: torch.full((1, 1, 4), 0.25) for layer in (0, 1)}
    assert not Remix(probs).needs_grad
    probs[1].requires_grad_()
    assert Remix(probs).needs_grad
    with torch.no_grad():
        assert not Remix(probs).needs_grad


@pytest.mark.parametrize("family", by_family(["olmoe", "gpt_oss", "deepseek_v2"]))
def test_named_tokens_with_the_whole_pathway_are_re_routed_as_the_first_ones_are(family):
    """Bit for bit, in float32; no token is the router's own decision."""
    model = small_model(family)
    _, E, _ = sizes(model)
    draw = torch.Generator().manual_seed(3)
    probs = {layer: torch.randn(3, 2, E, generator=draw).softmax(-1) for layer in (0, 2)}
    (B, S), W = IDS.shape, 2
    index_P = torch.tensor([b * S + w for b in range(B) for w in range(W)])
    first = Remix(probs)
    named = Remix(probs)
    nothing = Remix(probs)
    named.places = Places(index_P, torch.arange(B * W), torch.ones(B * W))
    nothing.places = Places(index_P[:0], index_P[:0])
    logits = []
    with torch.no_grad():
        plain = model(IDS).logits
        for policy in (first, named, nothing):
            with routed(model, policy):
                logits.append(model(IDS).logits)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[2], plain)
    assert not torch.equal(logits[0], plain)


# Top-p

DYNAMIC = [
    "qwen3_moe",
    "deepseek",
    "minimax_m2",
    "ernie4_5_moe",
    "deepseek_v2",
    "dbrx",
    "llama4_text",
]


@pytest.mark.parametrize("family", by_family(DYNAMIC))
def test_every_token_takes_its_first_experts_that_reach_p(family):
    model = small_model(family)
    policy = TopP(0.5, 4)
    total = 0
    calls = 0

    def check(router: Router, routing: Routing) -> Routing | None:
        nonlocal total, calls
        changed = policy(router, routing)
        assert changed is not None
        for token, logits_E in enumerate(routing.logits_TE):
            order = router.choose(router.scores(logits_E[None]), 4)[0].tolist()
            shares = router_shares(router, logits_E[None])[0]
            count = next((n for n in (1, 2, 3) if float(shares[order[:n]].sum()) >= 0.5), 4)
            index = changed.index_TK[token]
            weights = changed.weights_TK[token]
            assert index[:count].tolist() == order[:count]
            expected = router.weights(logits_E[None], torch.tensor([order[:count]]))[0]
            torch.testing.assert_close(weights[:count], expected.to(weights.dtype))
            assert not weights[count:].any()
            assert len(set(index.tolist())) == len(index)
            total = total + count
            calls = calls + 1
        return changed

    with torch.no_grad(), routed(model, check):
        model(IDS)
    assert policy.counts() == {"chosen_experts": total, "routing_decisions": calls}
    assert calls < total < 4 * calls, "all tokens take equally many experts: the test says nothing"


@pytest.mark.parametrize("family", ["olmoe", "deepseek_v3"])
def test_shares_are_the_probabilities_of_the_familys_kind(family):
    router = find_routers(small_model(family))[0]
    experts = router.module.weight.shape[0]
    logits_TE = torch.randn(5, experts, generator=torch.Generator().manual_seed(1))
    sigmoid_TE = 1 / (1 + (-logits_TE).exp())
    # without the bias for choosing
    expected = {"olmoe": logits_TE.exp(), "deepseek_v3": sigmoid_TE}[family]
    shares = router_shares(router, logits_TE)
    torch.testing.assert_close(shares, expected / expected.sum(dim=-1, keepdim=True))


def test_padding_is_not_counted():
    model = small_model("olmoe")
    policy = TopP(1.0, 2)
    real_T = torch.arange(IDS.numel()) >= 5

    def ask(mask: Any) -> dict[str, int]:
        policy.real_T = mask
        with torch.no_grad(), routed(model, policy):
            model(IDS)
        return policy.counts()

    assert ask(real_T) == {"chosen_experts": 2 * 4 * 55, "routing_decisions": 4 * 55}
    assert ask(None) == {"chosen_experts": 2 * 4 * 115, "routing_decisions": 4 * 115}


# Samples

SAMPLED = ["olmoe", "mixtral", "gpt_oss", "deepseek_v3", "phimoe"]
SAMPLES = torch.tensor([3, 4, 11, 17])
COUNTS = (1, 2, 5)


def tokens() -> NoisyTokens:
    return NoisyTokens(SAMPLES, *[torch.arange(len(SAMPLES))] * 4)


def last_experts(count: int) -> Any:
    """The experts with the lowest scores, the lowest first."""

    def choose(router: Router, routing: Routing, keys: NoisyTokens) -> torch.Tensor:
        assert len(routing.logits_TE) == len(keys.index) == len(SAMPLES)
        return router.scores(routing.logits_TE).topk(count, dim=-1, largest=False).indices

    return choose


@pytest.mark.parametrize("family", by_family(SAMPLED))
@pytest.mark.parametrize("count", COUNTS)
def test_samples_take_the_chosen_experts_with_the_weights_of_the_family(count, family):
    model = small_model(family)
    policy = OtherExperts(last_experts(count))
    seen = []
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
                order = routing.index_TK[token]
                weights = routing.weights_TK[token]
            experts = changed.index_TK[token]
            assert experts[: len(order)].tolist() == order.tolist()
            assert len(set(experts.tolist())) == width
            torch.testing.assert_close(changed.weights_TK[token, : len(order)], weights)
            assert not changed.weights_TK[token, len(order) :].any()
        seen.append(router.layer)
        return changed

    with torch.no_grad(), routed(model, check):
        model(IDS)
    assert seen == list(range(len(seen)))
    assert seen


@pytest.mark.parametrize("family", by_family(["olmoe", "deepseek_v3"]))
def test_all_tokens_of_a_pass_need_no_indices(family):
    router = find_routers(small_model(family))[0]
    T = 9
    E = router.module.weight.shape[0]
    logits_TE = torch.randn(T, E, generator=torch.Generator().manual_seed(0))
    index_TK = router.choose(router.scores(logits_TE), 2)
    routing = Routing(logits_TE, router.weights(logits_TE, index_TK), index_TK)
    keys = [torch.arange(T)] * 4
    for make in (lambda: OtherExperts(of_rank(2)), lambda: GumbelTopK([1.0], seed=0)):
        decided_tokens = []
        for index in (None, torch.arange(T)):
            policy = make()
            policy.expect(NoisyTokens(index, *keys))
            changed = policy(router, routing)
            decided_tokens.append(
                (changed.index_TK[:, 0].tolist(), changed.weights_TK[:, 0].tolist())
            )
        assert decided_tokens[0] == decided_tokens[1]


def test_a_pass_without_samples_is_the_models_own_and_one_that_nobody_announced_is_refused():
    model = small_model("olmoe")
    policy = OtherExperts(last_experts(2))
    with torch.no_grad():
        plain = model(IDS).logits
        with pytest.raises(RoutingError, match="expect"), routed(model, policy):
            model(IDS)
        policy.expect(None)
        with routed(model, policy):
            assert torch.equal(model(IDS).logits, plain)
