"""`method=top-k` against transformers' own models with another top-k, in float64 and without a cache.

Broken by: another number of experts, weights that are not the family's for this number, the model's own number that is
not the base model bit for bit, impossible values that are not refused before weights load.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from moe_lab.errors import ConfigError
from moe_lab.methods.expert_counts import TopK
from moe_lab.routing import find_routers
from tests.support.models import small_model
from tests.support.opened_methods import facts_of, opened
from tests.support.roe_reference import in_float64
from tests.support.routed_by_hand import FACTS, FAMILIES, base_answers, both_answers, check_answers


def top_k(**keys: Any) -> TopK:
    return TopK(TopK.Config(**keys))


def slow(model: Any, k: int) -> Any:
    double = in_float64(model)
    for router in find_routers(double):
        assert router.module.top_k == 2
        router.module.top_k = k
    return double


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_model_with_another_top_k(family: str, k: int, tokenizer: Any) -> None:
    model = small_model(family)
    double = slow(model, k)

    def log_probs(ids: list[int]) -> Any:
        with torch.no_grad():
            return double(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)

    with opened(top_k(k=k), model, tokenizer) as lm:
        check_answers(lm, log_probs, model.config.eos_token_id)
        assert lm.cost["chosen_experts"] == k * lm.cost["routing_decisions"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_models_own_number_is_the_base_model_bit_for_bit(family: str, tokenizer: Any) -> None:
    model = small_model(family)
    expected = base_answers(model, tokenizer)
    with opened(top_k(k=2), model, tokenizer) as lm:
        assert both_answers(lm) == expected


def test_the_grid_begins_with_the_base_model() -> None:
    assert top_k().grid(FACTS) == [{"k": 2}, {"k": 1}, {"k": 3}, {"k": 4}]


def test_the_identity_and_the_report_have_the_number() -> None:
    assert top_k().identity(FACTS) == top_k(k=4).identity(FACTS) != top_k(k=3).identity(FACTS)
    assert top_k().identity(replace(FACTS, experts=3))["k"] == 3, "twice, as far as there are so many"
    counters = {"chosen_experts": 12, "routing_decisions": 4}
    assert top_k(k=3).report(FACTS, counters, {}) == {
        "untuned": True,
        "top_k": {"k": 3, "experts_per_token": 3.0},
    }


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="method.k=0"):
        top_k(k=0)
    with pytest.raises(ConfigError, match="method.k=7: a token of this model can have 1 to 6"):
        top_k(k=7).check(FACTS)
    with pytest.raises(ConfigError, match="1 to 4 experts of the 8"):  # two of four groups are open
        top_k(k=5).check(facts_of(small_model("deepseek_v3")))
