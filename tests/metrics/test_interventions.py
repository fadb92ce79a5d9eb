"""Masked and random routing against models that were edited by hand.

Broken by: a masked expert that keeps a share of the softmax, one fewer expert per token, noise that depends on what was
read together, weights that are not the token's own.
"""

import copy
from typing import Any

import pytest
import torch

from moe_lab.engine.forward.batch import prefix_names
from moe_lab.engine.forward.forward import Observer, observed
from moe_lab.engine.lm import EngineLM
from moe_lab.metrics.interventions import Masked, RandomRouting, random_experts
from moe_lab.routing import record, routed
from tests.support.ensembles import answered
from tests.support.interventions import by_hand, without_experts
from tests.support.models import make_model, small_model
from tests.support.tiers import by_family

SHARED = "These are the first words of many. "
PAIRS = [
    (SHARED + "One", " red"),
    (SHARED + "One", " reddish"),
    (SHARED + "One", " blue"),
    (SHARED + "Another and longer", " no"),
    ("Short", " yes"),
]


def scores(model: Any, tokenizer: Any, observer: Observer | None = None) -> list[float]:
    lm = EngineLM(model, tokenizer, progress=False)
    with observed(lm, observer or Observer()):
        return [value for value, _ in answered(lm, "loglikelihood", PAIRS)]


@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "qwen3_moe"]))
def test_a_masked_expert_is_one_that_is_not_there(family, tokenizer):
    model = make_model(family)
    masked = [3, 0, 5, 2]
    expected = scores(without_experts(model, family, masked), tokenizer)
    assert scores(model, tokenizer, Masked(masked)) == pytest.approx(expected, abs=1e-4)
    assert scores(model, tokenizer) != pytest.approx(expected, abs=1e-2)


@pytest.mark.parametrize(
    ("family", "bias"), [("gpt_oss", "bias"), ("deepseek_v3", "e_score_correction_bias")]
)
def test_a_masked_expert_is_one_whose_router_row_cannot_win(family, bias, tokenizer):
    model = copy.deepcopy(small_model(family))
    plain = scores(model, tokenizer)
    with routed(model, lambda router, routing: None) as routers:
        pass
    masked = [layer % 8 for layer in range(1, len(routers) + 1)]
    found = scores(model, tokenizer, Masked(masked))
    with torch.no_grad():
        for router in routers:
            getattr(router.module, bias)[masked[router.layer]] = -1e9
    assert found == pytest.approx(scores(model, tokenizer), abs=1e-4)
    assert found != pytest.approx(plain, abs=1e-2)


def test_masking_keeps_k_distinct_experts_in_every_family_with_rows(tokenizer):
    for family in ("olmoe", "mixtral", "gpt_oss", "deepseek_v3", "qwen2_moe", "ernie4_5_moe", "cohere2_moe"):
        model = small_model(family)
        with torch.inference_mode(), record(model) as plain:
            model(torch.arange(40)[None])
        masked = [int(index[:, 0].mode().values) for index in plain.indices]
        policy = Masked(masked)
        with torch.inference_mode(), routed(model, policy), record(model) as routes:
            logits = model(torch.arange(40)[None]).logits
        assert not logits.isnan().any()
        for layer, index_TK in enumerate(routes.indices):
            assert index_TK.shape == plain.indices[layer].shape
            assert (index_TK != masked[layer]).all()
            assert all(len(set(row)) == len(row) for row in index_TK.tolist())


@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "gpt_oss"]))
def test_random_routing_is_that_of_a_router_made_by_hand(family, tokenizer):
    """Each pair alone, its experts drawn token by token; the engine reads all of them at once, beginnings shared."""
    model = small_model(family)
    lm = EngineLM(model, tokenizer, progress=False)
    expected = []
    for pair in PAIRS:
        context, continuation = lm.encode_pair(*pair)
        ids = [*context, *continuation[:-1]]
        with torch.inference_mode(), routed(model, by_hand(ids, seed=3)):
            log_probs = model(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
        places = list(range(len(context) - 1, len(ids)))
        expected.append(log_probs[places, continuation].sum().item())
    assert scores(model, tokenizer, RandomRouting(3)) == pytest.approx(expected, abs=1e-4)
    assert scores(model, tokenizer, RandomRouting(4)) != pytest.approx(expected, abs=1e-2)


def test_random_experts_are_distinct_and_uniform():
    """20,000 tokens, 8 experts, 2 of them each: every expert is within 5 standard deviations (61) of 5,000, with odds
    of about 1 in 200,000 against."""
    names_T = torch.from_numpy(prefix_names(list(range(20000))))
    index_TK = random_experts(0, names_T, torch.arange(20000), 1, E=8, K=2)
    assert (index_TK[:, 0] != index_TK[:, 1]).all()
    counts = torch.bincount(index_TK.flatten(), minlength=8)
    assert ((counts - 5000).abs() < 305).all()
    other = random_experts(0, names_T, torch.arange(20000), 2, E=8, K=2)
    assert (other != index_TK).any(dim=-1).float().mean() > 0.9
