"""Each design's block equals a slow one, in batches with padding too; its routers at the seam.

Broken by: a bias that enters the weights, a decision of another token than the unit's first,
a cache that forgets it, an expert that is not filled, padding that is chosen, a capacity
over the whole batch; a router that is not said to be fixed, a policy on one that is, noise
that is not added where a biased router chooses.
"""

import pytest
import torch
from transformers import DynamicCache

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.designs.configuration import MoeDesignConfig
from moe_lab.models.designs.routers import BiasedTopKRouter, DesignTopKRouter, UnitTopKRouter
from moe_lab.models.facts import model_facts
from moe_lab.routing import GumbelTopK, find_routers, gumbel, record, routed
from moe_lab.routing.families import fixed_routing
from moe_lab.routing.rules import LOGITS, PROBABILITY
from tests.support import rounding, slow_routing
from tests.support.designs import (
    BACKBONES,
    COMMON,
    VOCAB,
    arbitrary_units,
    design,
    slow_moe,
    unit_starts,
)

IDS = torch.randint(0, VOCAB, (3, 13), generator=torch.Generator().manual_seed(1))
LENGTHS = (13, 9, 2)
CASES = [
    dict(router="token", num_experts_per_tok=1),
    dict(router="token", n_shared_experts=2, norm_topk_prob=True, selection_bias=True),
    dict(router="token", num_experts_per_tok=1, norm_topk_prob=True, selection_bias=True),
    dict(router="word", n_shared_experts=1),
    dict(router="word", num_experts_per_tok=1, selection_bias=True),
    dict(router="sentence", num_experts_per_tok=1),
    dict(router="sentence", norm_topk_prob=True),
    dict(router="expert", num_experts_per_tok=1),
    dict(router="expert", n_shared_experts=2),
    dict(router="expert", capacity_factor=1.3),
    dict(router="expert", capacity_factor=0.05),
    dict(router="expert", num_experts_per_tok=5, capacity_factor=2.0),
]


def seen_by(model, part, *args, **inputs):
    """(module, input, output) of one part of each MoE layer in one pass: "mlp" or "mlp.gate"."""
    seen = []

    def note(module, inputs, output):
        seen.append((module, inputs[0], output))

    for layer in model.model.layers:
        if hasattr(layer.mlp, "gate"):
            module = layer.get_submodule(part)
            module.register_forward_hook(note)
    with torch.no_grad():
        model(*args, **inputs)
    return seen


@pytest.mark.parametrize(("side", "backbone"), [("left", "deepseek"), ("right", "olmoe")])
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: " ".join(f"{k}={v}" for k, v in case.items())
)
def test_every_block_is_the_slow_one(case, backbone, side):
    model = design(**case, **BACKBONES[backbone])
    mask = torch.zeros_like(IDS)
    for row, length in enumerate(LENGTHS):
        mask[row, slice(13 - length, None) if side == "left" else slice(length)] = 1
    padded = torch.where(mask.bool(), IDS, 7)
    seen = seen_by(model, "mlp", padded, attention_mask=mask)
    assert len(seen) == (3 if backbone == "olmoe" else 2)
    for block, hidden, out in seen:
        for row in range(3):
            real = mask[row].bool()
            starts = None
            if case["router"] in ("word", "sentence"):
                starts = unit_starts(arbitrary_units(), padded[row][real].tolist())
                assert len(set(starts)) < len(starts) or len(starts) == 2
            expected = slow_moe(block, model.config, hidden[row][real], starts)
            torch.testing.assert_close(out[row][real].double(), expected, rtol=1e-4, atol=1e-5)


def test_the_bias_is_a_float32_buffer_of_a_class_of_its_own():
    plain = design("token")
    biased = design("token", selection_bias=True)
    assert type(plain.model.layers[0].mlp.gate) is DesignTopKRouter
    assert plain.model.layers[0].mlp.gate.selection_bias is None
    gate = biased.model.layers[0].mlp.gate
    assert type(gate) is BiasedTopKRouter
    assert gate.selection_bias.dtype == torch.float32
    assert "selection_bias" in gate.state_dict()
    assert "selection_bias" not in dict(gate.named_parameters())
    fresh = type(biased)(biased.config)
    assert not fresh.model.layers[0].mlp.gate.selection_bias.any()


def test_gradient_flows_through_a_units_decision_to_its_first_token():
    model = design("word")
    gate = model.model.layers[0].mlp.gate
    assert isinstance(gate, UnitTopKRouter)
    ids = IDS[:1]
    units = model.model.units(ids, torch.ones_like(ids, dtype=torch.bool), None)
    hidden_TH = torch.randn(13, 32, requires_grad=True)
    logits, weights, _ = gate(hidden_TH, units, None)
    last = units.first_BS[0, -1]
    assert last < 12
    weights[-1].square().sum().backward()
    moved = hidden_TH.grad.abs().sum(dim=-1).nonzero().flatten().tolist()
    assert moved == [int(last)]
    assert gate.weight.grad.abs().sum() > 0
    assert torch.equal(logits[-1], logits[last])


def test_a_hashed_word_takes_the_experts_of_its_first_token_whatever_the_text_says():
    """Broken by: experts that depend on hidden states.

    Also by layers with the same experts, and by unequal weights.
    """
    model = design("word-hash", num_experts_per_tok=2)
    seen = [output for _, _, output in seen_by(model, "mlp.gate", IDS)]
    firsts = []
    for row in IDS.tolist():
        firsts += [row[start] for start in unit_starts(arbitrary_units(), row)]
    by_word = {}
    for layer, (_, weights, index) in enumerate(seen):
        assert torch.equal(weights, torch.full_like(weights, 0.5))
        for word, experts in zip(firsts, index.tolist(), strict=True):
            assert by_word.setdefault((layer, word), experts) == experts
        assert len({tuple(sorted(experts)) for experts in index.tolist()}) > 3
    words = set(firsts)
    assert any(by_word[0, word] != by_word[1, word] for word in words), "another hash in each layer"
    assert not [name for name, _ in model.named_parameters() if "gate.weight" in name], (
        "nothing to learn"
    )
    second_model = design("word-hash", num_experts_per_tok=2, hidden_size=64)
    units = second_model.model.units(IDS, IDS >= 0, None)
    _, _, index = second_model.model.layers[0].mlp.gate(torch.zeros(IDS.numel(), 64), units, None)
    assert torch.equal(index, seen[0][2]), "the same for all models of a vocabulary"


def test_a_cache_without_a_place_for_decisions_is_refused():
    model = design("word")
    with pytest.raises(ValueError, match=r"DynamicCache\(config=model.config\)"):
        model(IDS, cache=DynamicCache())
    with pytest.raises(ValueError, match=r"DynamicCache\(config=model.config\)"):
        model(IDS, cache=design("token")(IDS).cache)


CHOICE_IDS = torch.randint(0, VOCAB, (2, 12), generator=torch.Generator().manual_seed(2))


def test_a_capacity_is_not_raised_by_rounding():
    model = design("expert", capacity_factor=1.1, n_routed_experts=10, num_experts_per_tok=1)
    gate = model.model.layers[0].mlp.gate
    assert 1.1 / 10 * 100 > 11
    assert gate.capacity(100) == 11
    real = torch.ones(1, 100, dtype=torch.bool)
    assert gate._taken(real, 12).sum() == 11


def test_it_runs_without_a_cache():
    model = design("expert")
    with torch.no_grad():
        plain = model(CHOICE_IDS)
        cached = model(CHOICE_IDS, use_cache=True, cache=DynamicCache())
        assert plain.cache is None
        assert cached.cache is None
        assert torch.equal(plain.logits, cached.logits)
        generated = model.generate(CHOICE_IDS, max_new_tokens=5, do_sample=False, use_cache=True)
        full = design("token")(CHOICE_IDS).cache
        expected = CHOICE_IDS
        for _ in range(5):
            expected = torch.cat([expected, model(expected).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(generated, expected)
    with pytest.raises(ValueError, match="runs without a cache"):
        model(CHOICE_IDS[:, -1:], cache=full)


SEAM_IDS = torch.arange(24)[None] * 7
FIXED = ("word", "sentence", "word-hash", "expert")


@pytest.mark.parametrize("router", ["token", "word", "sentence", "word-hash", "expert"])
def test_all_but_token_choice_are_fixed(router):
    reason = fixed_routing(MoeDesignConfig(**COMMON, router=router))
    if router == "token":
        assert reason is None
    elif router == "expert":
        assert "experts choose their tokens" in reason
    elif router == "word-hash":
        assert "by the id of its first token" in reason
    else:
        assert f"all tokens of a {router}" in reason


@pytest.mark.parametrize("router", FIXED)
def test_a_policy_on_a_fixed_router_is_refused_and_the_routers_are_found(router):
    model = design(router)
    assert len(find_routers(model)) == 3
    says = "does not allow to read or change the routing of single tokens: its"
    with pytest.raises(ModelError, match=says), record(model):
        pass


def facts_of(folder, **settings):
    MoeDesignConfig(**COMMON | settings).save_pretrained(folder)
    return model_facts(ModelConfig(path=str(folder)), dtype="auto", device="cpu", offline=True)


def test_facts_say_what_routers_choose_by(tmp_path):
    plain = facts_of(tmp_path / "plain", first_k_dense_replace=1, backbone="deepseek")
    assert (plain.family, plain.moe_layers, plain.experts, plain.top_k) == ("moe_design", 2, 5, 2)
    assert plain.routers.rule.noise == LOGITS
    assert plain.routers.chooses_by_logits
    assert not plain.fixed_routing
    biased = facts_of(tmp_path / "biased", selection_bias=True)
    assert biased.routers.rule.noise == PROBABILITY
    assert not biased.routers.chooses_by_logits
    assert biased.routers.chosen_by == "probability plus a bias"
    assert "all tokens of a word" in facts_of(tmp_path / "word", router="word").fixed_routing


@pytest.mark.parametrize("norm", [False, True])
def test_biased_routers_choose_and_weigh_as_their_rule_says(norm):
    model = design("token", selection_bias=True, norm_topk_prob=norm)

    def check(router, routing):
        assert torch.equal(router.weights(routing.logits_TE, routing.index_TK), routing.weights_TK)
        chosen = router.choose(router.scores(routing.logits_TE), 2)
        assert torch.equal(chosen, routing.index_TK)
        plain = routing.logits_TE.topk(2, dim=-1).indices
        changed.append((plain.sort(dim=-1).values != chosen.sort(dim=-1).values).any())

    changed: list[torch.Tensor] = []
    with routed(model, check), torch.inference_mode():
        model(SEAM_IDS)
    assert len(changed) == 3
    assert any(changed)


def test_noise_on_biased_routers_is_what_the_slow_reference_makes_of_it():
    model = design("token", selection_bias=True)
    spec = slow_routing.Spec("softmax", "scores", "gate.selection_bias", "norm_topk_prob")
    policy = GumbelTopK([0.1] * 3, seed=3)
    policy.expect(slow_routing.noisy_tokens(24))

    def check(router, routing):
        noisy = policy(router, routing)
        noise = gumbel(3, 77, 0, 1, router.layer, range(24), 5)
        for token in range(24):
            logits = routing.logits_TE[token].tolist()
            arguments = (
                spec,
                model.config,
                router.module,
                router.block,
                logits,
                noise[token].tolist(),
                0.1,
                2,
            )
            expected = dict(zip(*slow_routing.route(*arguments), strict=True))
            actual = dict(
                zip(noisy.index_TK[token].tolist(), noisy.weights_TK[token].tolist(), strict=True)
            )
            assert actual == rounding.approx(expected)

    with routed(model, check), torch.inference_mode():
        model(SEAM_IDS)
    assert policy.counts()["changed_decisions"] > 5
