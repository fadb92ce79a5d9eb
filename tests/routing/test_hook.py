"""The seam: installed on every router, gone on exit, and never silent when it does not act."""

from __future__ import annotations

import pytest
import torch

from moe_lab.errors import ModelError, RoutingError
from moe_lab.routing import GumbelTopK, Routing, find_routers, record, routed, supported
from moe_lab.routing.gumbel_top_k import NoisyTokens
from tests.support.families import VOCAB
from tests.support.models import make_model

IDS = torch.arange(2 * 9).reshape(2, 9) * 7 % VOCAB


def logits(model, **options):
    with torch.no_grad():
        return model(IDS, **options).logits


def hooks_of(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def all_noisy(tokens, row=1):
    n = torch.arange(tokens)
    return NoisyTokens(n, torch.full_like(n, 77), torch.zeros_like(n), torch.full_like(n, row), n)


def test_every_moe_layer_has_a_router(moe_model):
    dense = {"qwen2_moe": 1}.get(moe_model.config.model_type, 0)
    routers = find_routers(moe_model)
    assert [router.layer for router in routers] == list(range(4 - dense))


def test_recomputed_weights_are_the_routers_own_bit_for_bit(moe_model):
    def recompute(router, routing):
        weights = router.weights(routing.logits_TE, routing.index_TK)
        assert weights.dtype == routing.weights_TK.dtype
        assert torch.equal(weights, routing.weights_TK)
        return Routing(routing.logits_TE, weights, routing.index_TK)

    clean = logits(moe_model)
    with routed(moe_model, recompute):
        assert torch.equal(logits(moe_model), clean)


@pytest.mark.parametrize("experts", ["eager", "grouped_mm", "batched_mm"])
def test_temperature_zero_is_the_untouched_model_bit_for_bit(moe_model, experts):
    moe_model.set_experts_implementation(experts)
    try:
        clean = logits(moe_model)
        policy = GumbelTopK([0.0] * len(find_routers(moe_model)), seed=0)
        policy.expect(all_noisy(IDS.numel()))
        with routed(moe_model, policy):
            assert torch.equal(logits(moe_model), clean)
    finally:
        moe_model.set_experts_implementation("grouped_mm")


def test_noise_changes_routing_and_output(moe_model):
    clean = logits(moe_model)
    policy = GumbelTopK([0.5] * len(find_routers(moe_model)), seed=0)
    policy.expect(all_noisy(IDS.numel()))
    with routed(moe_model, policy):
        assert not torch.equal(logits(moe_model), clean)
    changed, decisions = policy.decisions
    assert decisions == IDS.numel() * len(find_routers(moe_model))
    assert 0 < changed < decisions


def test_model_is_restored_after_an_exception(moe_model):
    clean, hooks = logits(moe_model), hooks_of(moe_model)
    with pytest.raises(ZeroDivisionError), routed(moe_model, lambda router, routing: 1 / 0):
        logits(moe_model)
    assert hooks_of(moe_model) == hooks
    assert torch.equal(logits(moe_model), clean)


def test_a_dense_model_is_refused_with_the_families_and_the_way_out():
    with pytest.raises(ModelError) as caught, routed(make_model("llama"), lambda router, routing: None):
        pass
    assert all(family in str(caught.value) for family in supported())
    assert "method=base" in str(caught.value)


def test_a_bypassed_router_is_named(olmoe):
    layer = olmoe.model.layers[2].mlp
    original = layer.forward
    layer.forward = lambda hidden: hidden
    try:
        with (
            pytest.raises(RoutingError, match=r"model\.layers\.2\.mlp\.gate"),
            routed(olmoe, lambda r, x: None),
        ):
            logits(olmoe)
    finally:
        layer.forward = original


def test_nan_is_named_by_layer():
    model = make_model("olmoe")
    with torch.no_grad():
        model.model.layers[1].mlp.gate.weight[3, 3] = float("nan")
    with pytest.raises(RoutingError, match="MoE layer 1"), routed(model, lambda router, routing: None):
        logits(model)


@pytest.mark.parametrize("error", [ValueError, RuntimeError, RoutingError])
def test_nan_is_named_where_it_ends_in_another_error(error: type[Exception]) -> None:
    model = make_model("olmoe")
    with torch.no_grad():
        model.model.layers[1].mlp.gate.weight[3, 3] = float("nan")
    named = pytest.raises(RoutingError, match="MoE layer 1")
    with named as raised, torch.inference_mode(), routed(model, lambda router, routing: None):
        logits(model)
        raise error("the tokens are NaN")
    assert isinstance(raised.value.__context__, error)


def test_record_leaves_out_padding(moe_model):
    mask = torch.ones_like(IDS)
    mask[0, :4] = 0
    with record(moe_model) as routes:
        padded = moe_model(IDS, attention_mask=mask).logits
    with record(moe_model) as alone:
        moe_model(IDS[:1, 4:])
    k = moe_model.config.num_experts_per_tok
    for layer, index in enumerate(routes.indices):
        assert index.shape == (int(mask.sum()), k)
        assert torch.equal(index[:5], alone.indices[layer])
        torch.testing.assert_close(routes.weights[layer][:5], alone.weights[layer], rtol=1e-4, atol=1e-5)
    assert torch.equal(padded, moe_model(IDS, attention_mask=mask).logits)


def test_an_inner_policy_sees_what_the_outer_one_decided(olmoe):
    def reversed_experts(router, routing):
        return Routing(routing.logits_TE, routing.weights_TK.flip(-1), routing.index_TK.flip(-1))

    with record(olmoe) as plain:
        logits(olmoe)
    with routed(olmoe, reversed_experts), record(olmoe) as routes:
        logits(olmoe)
    assert torch.equal(routes.indices[0], plain.indices[0].flip(-1))


def test_recorder_of_transformers_still_sees_clean_logits(olmoe):
    clean = logits_of_routers(olmoe)
    policy = GumbelTopK([0.0, 0.0, 0.0, 0.9], seed=0)
    policy.expect(all_noisy(IDS.numel()))
    with routed(olmoe, policy):
        noisy = logits_of_routers(olmoe)
    assert all(torch.equal(a, b) for a, b in zip(clean, noisy, strict=True))


def logits_of_routers(model):
    with torch.no_grad():
        return model(IDS, output_router_logits=True).router_logits
