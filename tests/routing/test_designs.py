"""Designs at the seam.

Broken by: a router that is not said to be fixed, a policy on one that is, noise that is not added where a biased router
chooses.
"""

import pytest
import torch

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.designs.configuration import MoeDesignConfig
from moe_lab.models.facts import model_facts
from moe_lab.routing import GumbelTopK, find_routers, gumbel, record, routed
from moe_lab.routing.families import fixed_routing
from moe_lab.routing.rules import LOGITS, PROBABILITY
from tests.support import rounding, slow_routing
from tests.support.designs import COMMON, design

IDS = torch.arange(24)[None] * 7
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
    assert plain.routers.rule.noise == LOGITS and plain.routers.chooses_by_logits and not plain.fixed_routing
    biased = facts_of(tmp_path / "biased", selection_bias=True)
    assert biased.routers.rule.noise == PROBABILITY and not biased.routers.chooses_by_logits
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
        model(IDS)
    assert len(changed) == 3 and any(changed)


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
            given = (spec, model.config, router.module, router.block, logits, noise[token].tolist(), 0.1, 2)
            expected = dict(zip(*slow_routing.route(*given), strict=True))
            found = dict(zip(noisy.index_TK[token].tolist(), noisy.weights_TK[token].tolist(), strict=True))
            assert found == rounding.approx(expected)

    with routed(model, check), torch.inference_mode():
        model(IDS)
    assert policy.decisions[0] > 5
