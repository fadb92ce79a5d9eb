"""`method=top-k` and `method=top-p` against full forward passes with experts that are chosen by hand, in float64.

Broken by: another number of experts, an expert too many or too few, weights that are not the family's for this number,
a token that takes more than k_max, padding that is counted as tokens, the model's own number or p=1 that is not the
base model bit for bit, impossible values that are not refused before weights load.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from moe_lab.errors import ConfigError
from moe_lab.methods.expert_counts import TopK, TopP
from moe_lab.routing import find_routers
from tests.support.models import small_model
from tests.support.opened_methods import answered, facts_of, opened
from tests.support.roe_reference import in_float64
from tests.support.routed_by_hand import (
    FACTS,
    FAMILIES,
    PAIRS,
    base_answers,
    both_answers,
    check_answers,
    open_experts,
    routed_pass,
    weights_of,
)


def top_k(**keys: Any) -> TopK:
    return TopK(TopK.Config(**keys))


def test_the_identity_and_the_report_have_the_number():
    assert top_k().identity(FACTS) == top_k(k=4).identity(FACTS) != top_k(k=3).identity(FACTS)
    assert top_k().identity(replace(FACTS, experts=3))["k"] == 3, "twice, as far as there are so many"
    counters = {"chosen_experts": 12, "routing_decisions": 4}
    assert top_k(k=3).report(FACTS, counters, {}) == {
        "untuned": True,
        "top_k": {"k": 3, "experts_per_token": 3.0},
    }


def test_no_more_experts_than_open_groups_have():
    with pytest.raises(ConfigError, match="1 to 4 experts of the 8"):  # two of four groups are open
        top_k(k=5).check(facts_of(small_model("deepseek_v3")))


def top_p(**keys: Any) -> TopP:
    return TopP(TopP.Config(**keys))


# By hand -------------------------------------------------------------------------------------------------------------


def order_of(router: Any, logits: Any) -> tuple[list[int], Any]:
    """(experts in the order of choice, probabilities)"""
    if not hasattr(router, "num_group"):
        return open_experts(router, logits), logits.softmax(-1)
    scores = logits.sigmoid() + router.e_score_correction_bias
    return open_experts(router, scores), logits.sigmoid() / logits.sigmoid().sum()


def chosen(router: Any, logits: Any, p: float, k_max: int) -> list[int]:
    order, probs = order_of(router, logits)
    taken: list[int] = []
    while len(taken) < min(k_max, len(order)) and (p == 1 or sum(float(probs[e]) for e in taken) < p):
        taken.append(order[len(taken)])
    return taken


def log_probs(model64: Any, ids: list[int], p: float, k_max: int) -> tuple[Any, int]:
    """(float64 [S, V] of one pass, the sum of the experts of all tokens and layers)"""
    total = 0

    def route(layer: int, router: Any, output: Any) -> Any:
        nonlocal total
        logits_TE, weights_TK, _ = output
        weights, index = torch.zeros_like(logits_TE, dtype=weights_TK.dtype), logits_TE.argsort()
        for token, logits in enumerate(logits_TE):
            experts = chosen(router, logits, p, k_max)
            total += len(experts)
            index[token] = torch.tensor(experts + [e for e in range(len(logits)) if e not in experts])
            weights[token, : len(experts)] = weights_of(model64.config.model_type, router, logits, experts)
        return logits_TE, weights, index

    return routed_pass(model64, ids, route).log_softmax(-1), total


def check(method: Any, family: str, tokenizer: Any, p: float, k_max: int) -> None:
    model = small_model(family)
    double = in_float64(model)
    with opened(method, model, tokenizer) as lm:
        check_answers(lm, lambda ids: log_probs(double, ids, p, k_max)[0], model.config.eos_token_id)


@pytest.mark.parametrize(
    ("family", "p", "k_max"),
    [
        *((family, 0.5, 3) for family in FAMILIES),
        ("deepseek_v3", 1.0, 3),
        pytest.param("olmoe", 0.7, None, marks=pytest.mark.slow),
        # with recurrent layers
        *(pytest.param("qwen3_next", p, 3, marks=pytest.mark.slow) for p in (0.5, 1.0)),
    ],
)
def test_tokens_take_the_fewest_experts_that_reach_p(family, p, k_max, tokenizer):
    check(top_p(p=p, k_max=k_max), family, tokenizer, p, k_max or 8)


@pytest.mark.parametrize(("family", "k"), [*product(FAMILIES, [1]), (FAMILIES[0], 4)])
def test_tokens_take_k_experts(family, k, tokenizer):
    check(top_k(k=k), family, tokenizer, 1.0, k)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_the_mean_number_of_experts_is_that_of_the_tokens_that_were_read(batch_size, tokenizer):
    model, texts = small_model("olmoe"), [("three red pens",), ("a",), ("one and two",)]
    double = in_float64(model)
    method = top_p(p=0.5, k_max=4)
    with opened(method, model, tokenizer) as lm:
        lm.budget = lm.engine.budget = replace(lm.budget, sequences=batch_size)
        answered(lm, "loglikelihood_rolling", texts)
        counts = lm.cost
    total, decisions = 0.0, 0
    for (text,) in texts:
        ids = [lm.prefix_token_id, *lm.tok_encode(text)][:-1]
        total += log_probs(double, ids, 0.5, 4)[1]
        decisions += 4 * len(ids)
    assert counts["routing_decisions"] == decisions == 4 * counts["tokens_in"]
    assert counts["chosen_experts"] == total and 1 < total / decisions < 4
    block = method.report(facts_of(model), counts, {})["top_p"]
    assert block == {"p": 0.5, "k_max": 4, "experts_per_token": total / decisions}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", [top_k(k=2), top_p(p=1.0, k_max=2)], ids=["top-k", "top-p"])
def test_the_models_own_number_is_the_base_model_bit_for_bit(method, family, tokenizer):
    model = small_model(family)
    expected = base_answers(model, tokenizer)
    with opened(method, model, tokenizer) as lm:
        assert both_answers(lm) == expected
        lm.set_ensemble(lm.ensemble)  # as a study does
        assert answered(lm, "loglikelihood", PAIRS) == expected[0]
        assert lm.cost["chosen_experts"] == 2 * lm.cost["routing_decisions"]
        assert lm.cost["routing_decisions"] == len(find_routers(model)) * lm.cost["tokens_in"]


def test_the_identity_has_the_number_of_experts():
    assert top_p().identity(FACTS) == top_p(k_max=6).identity(FACTS) != top_p(k_max=5).identity(FACTS)
    assert top_p().report(FACTS, {}, {})["top_p"]["experts_per_token"] is None


def test_models_with_a_fixed_number_are_refused():
    with pytest.raises(ConfigError, match="cannot have another number"):
        top_p().check(facts_of(small_model("phimoe")))


def test_the_grids_begin_with_the_base_model():
    assert top_k().grid(FACTS) == [{"k": 2}, {"k": 1}, {"k": 3}, {"k": 4}]
    first, *others = top_p().grid(FACTS)
    assert first == {"p": 1.0, "k_max": 2}
    assert others == [{"p": tenth / 10, "k_max": 6} for tenth in range(1, 10)]
