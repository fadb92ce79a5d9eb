"""`method=top-p` against full forward passes with experts that are chosen by hand, in float64.

Broken by: an expert too many or too few, weights of other experts, weights that are renormalized where the family does
not, a token that takes more than k_max, padding that is counted as tokens, p=1 that is not the base model bit for bit,
impossible values that are not refused before weights load.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from moe_lab.engine.lm import EngineLM
from moe_lab.errors import ConfigError
from moe_lab.methods.expert_counts import TopP
from moe_lab.models.facts import ModelFacts
from moe_lab.routing import find_routers
from tests.support import rounding
from tests.support.models import small_model
from tests.support.opened_methods import answered, facts_of, opened
from tests.support.roe_reference import in_float64

FAMILIES = ("olmoe", "mixtral", "gpt_oss", "deepseek_v3")
PAIRS = [("three pens", " and"), ("three pens", " 7"), ("a", " b")]
STEPS = 3
PROMPTS = [(prompt, {"max_gen_toks": STEPS, "until": []}) for prompt in ("three pens", "a", "one")]


def top_p(**keys: Any) -> TopP:
    return TopP(TopP.Config(**keys))


# By hand -------------------------------------------------------------------------------------------------------------


def order_of(router: Any, logits: Any) -> tuple[list[int], Any]:
    """(experts in the order of choice, probabilities)"""
    if not hasattr(router, "num_group"):
        return logits.argsort(descending=True).tolist(), logits.softmax(-1)
    shares = logits.sigmoid() / logits.sigmoid().sum()
    scores = logits.sigmoid() + router.e_score_correction_bias
    groups = scores.unflatten(0, (router.num_group, -1))
    best = groups.topk(2).values.sum(-1).argsort(descending=True)[: router.topk_group].tolist()
    order = scores.argsort(descending=True).tolist()
    return [e for e in order if e // groups.shape[1] in best], shares


def chosen(router: Any, logits: Any, p: float, k_max: int) -> list[int]:
    order, probs = order_of(router, logits)
    taken: list[int] = []
    while len(taken) < min(k_max, len(order)) and (p == 1 or sum(float(probs[e]) for e in taken) < p):
        taken.append(order[len(taken)])
    return taken


def weights_of(kind: str, router: Any, logits: Any, experts: list[int]) -> Any:
    if kind == "gpt_oss":
        return logits[experts].softmax(-1)
    if kind == "deepseek_v3":
        own = logits.sigmoid()[experts]
        return own / own.sum() * router.routed_scaling_factor
    own = logits.softmax(-1)[experts]
    return own if kind == "olmoe" else own / own.sum()


def log_probs(model64: Any, ids: list[int], p: float, k_max: int) -> tuple[Any, float]:
    """(float64 [S, V] of one pass, the sum of the experts of all tokens and layers)"""
    total, handles = 0, []

    def hook(module: Any, args: Any, output: Any) -> Any:
        nonlocal total
        logits_TE, weights_TK, _ = output
        E = logits_TE.shape[-1]
        weights, index = (
            torch.zeros(len(ids), E, dtype=weights_TK.dtype),
            torch.zeros(len(ids), E, dtype=torch.long),
        )
        for token, logits in enumerate(logits_TE):
            experts = chosen(module, logits, p, k_max)
            total += len(experts)
            index[token] = torch.tensor(experts + [e for e in range(E) if e not in experts])
            weights[token, : len(experts)] = weights_of(model64.config.model_type, module, logits, experts)
        return logits_TE, weights, index

    handles = [router.module.register_forward_hook(hook) for router in find_routers(model64)]
    with torch.no_grad():
        found = model64(torch.tensor([ids]), use_cache=False).logits[0].double().log_softmax(-1)
    for handle in handles:
        handle.remove()
    return found, total


def check(method: Any, model: Any, tokenizer: Any, p: float, k_max: int) -> None:
    double = in_float64(model)
    with opened(method, model, tokenizer) as lm:
        expected = []
        for pair in PAIRS:
            context, answer = map(list, lm.encode_pair(*pair))
            probs = log_probs(double, context + answer, p, k_max)[0][len(context) - 1 : -1]
            target = torch.tensor(answer)
            greedy = bool((probs.argmax(-1) == target).all())
            expected.append((float(probs.gather(1, target[:, None]).sum()), greedy))
        found = answered(lm, "loglikelihood", PAIRS)
        assert [value for value, _ in found] == rounding.approx([value for value, _ in expected], 4)
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
        for text, (prompt, _) in zip(answered(lm, "generate_until", PROMPTS), PROMPTS, strict=True):
            ids = list(lm.tok_encode(prompt))
            while len(ids) < len(lm.tok_encode(prompt)) + STEPS and ids[-1] != model.config.eos_token_id:
                ids.append(int(log_probs(double, ids, p, k_max)[0][-1].argmax()))
            assert text == lm.tok_decode(ids[len(lm.tok_encode(prompt)) :])


@pytest.mark.parametrize(
    ("p", "k_max"), [(0.5, 3), pytest.param(0.7, None, marks=pytest.mark.slow), (1.0, 3)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_take_the_fewest_experts_that_reach_p(
    family: str, p: float, k_max: int | None, tokenizer: Any
) -> None:
    check(top_p(p=p, k_max=k_max), small_model(family), tokenizer, p, k_max or 8)


@pytest.mark.slow
@pytest.mark.parametrize("p", [0.5, 1.0])
def test_models_with_recurrent_layers(p: float, tokenizer: Any) -> None:
    model = small_model("qwen3_next")
    check(top_p(p=p, k_max=3), model, tokenizer, p, 3)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_the_mean_number_of_experts_is_that_of_the_tokens_that_were_read(
    batch_size: int, tokenizer: Any
) -> None:
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
def test_p_of_1_with_the_models_own_number_is_the_base_model_bit_for_bit(family: str, tokenizer: Any) -> None:
    model = small_model(family)
    base = EngineLM(model, tokenizer, progress=False)
    expected = [answered(base, "loglikelihood", PAIRS), answered(base, "generate_until", PROMPTS)]
    with opened(top_p(p=1.0, k_max=2), model, tokenizer) as lm:
        assert [answered(lm, "loglikelihood", PAIRS), answered(lm, "generate_until", PROMPTS)] == expected
        lm.set_ensemble(lm.ensemble)  # as a study does
        assert answered(lm, "loglikelihood", PAIRS) == expected[0]
        assert lm.cost["chosen_experts"] == 2 * lm.cost["routing_decisions"]
        assert lm.cost["routing_decisions"] == len(find_routers(model)) * lm.cost["tokens_in"]


FACTS = ModelFacts(
    name="x", path=None, revision=None, commit=None, family="olmoe", dtype="float32", moe_layers=4, experts=6, top_k=2,
    max_length=512,
)  # fmt: skip


def test_the_grid_begins_with_the_base_model() -> None:
    grid = top_p().grid(FACTS)
    assert grid[0] == {"p": 1.0, "k_max": 2}
    assert grid[1:] == [{"p": tenth / 10, "k_max": 6} for tenth in range(1, 10)]


def test_the_identity_has_the_number_of_experts() -> None:
    assert top_p().identity(FACTS) == top_p(k_max=6).identity(FACTS) != top_p(k_max=5).identity(FACTS)
    assert top_p().report(FACTS, {}, {})["top_p"]["experts_per_token"] is None


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"p": 0}, "method.p=0"),
        ({"p": 1.5}, "at most 1"),
        ({"k_max": 0}, "method.k_max=0"),
        ({"k_max": 7}, "1 to 6"),
    ],
)
def test_impossible_values_are_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        top_p(**keys).check(FACTS)


def test_models_with_a_fixed_number_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot have another number"):
        top_p().check(facts_of(small_model("phimoe")))
