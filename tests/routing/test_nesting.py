"""Contexts inside one another: an ensemble inside a policy of one's own is that of the model with other routers.

Broken by: a policy that single passes of the engine skip, and one whose decision the noise overwrites in silence.
"""

from __future__ import annotations

import copy
import types

import pytest
import torch
from torch.nn.functional import linear

import moe_lab
from moe_lab import C3PO, RoE, expert_metrics, override, record, replay
from moe_lab.errors import ModelError, RoutingError
from moe_lab.routing import Routing, find_routers
from tests.support import attention_kinds, roe_reference, rounding
from tests.support.models import build, left_padded, make_model, small_model

N, SEED, E = 3, 5, 8
BIAS = torch.linspace(-2, 2, E)
PAIRS = [("two and two", " four"), ("one and one are", " two"), ("a cat is", " an animal")]


def biased(router, routing):
    logits_TE = routing.logits_TE + BIAS
    index_TK = router.choose(router.scores(logits_TE), routing.index_TK.shape[-1])
    return Routing(logits_TE, router.weights(logits_TE, index_TK), index_TK)


def second_best(router, routing):
    """Another choice at the same logits."""
    scores_TE = router.scores(routing.logits_TE).scatter(-1, routing.index_TK[:, :1], -torch.inf)
    index_TK = router.choose(scores_TE, routing.index_TK.shape[-1])
    return routing._replace(index_TK=index_TK, weights_TK=router.weights(routing.logits_TE, index_TK))


def with_biased_routers(model):
    """A copy whose routers are written anew."""

    def forward(self, hidden):
        logits = linear(hidden.reshape(-1, hidden.shape[-1]), self.weight) + BIAS.to(hidden.dtype)
        weights, index = logits.softmax(-1).topk(2, dim=-1)
        return logits, weights, index

    changed = copy.deepcopy(model)
    for router in find_routers(changed):
        router.module.forward = types.MethodType(forward, router.module)
    return changed


@pytest.mark.parametrize("cache", ["clean", "standard"])
def test_roe_inside_override_is_that_of_a_slow_reference(olmoe, tokenizer, cache):
    double = roe_reference.in_float64(with_biased_routers(olmoe))
    roe = RoE(olmoe, tokenizer, n=N, temperature=0.7, seed=SEED, cache=cache)
    history = {"cache": cache}
    ids, context, continuation = [7, 9, 1, 30], tokenizer.encode("what is"), tokenizer.encode(" a cat")
    with override(olmoe, biased):
        logprobs = roe.next_token_logprobs(ids)
        score = roe.loglikelihood("what is", " a cat")
        text = roe.generate(["what is", "hello you"], max_new_tokens=6)
        inputs = left_padded(tokenizer, ["what is", "hello you"])
        generated = olmoe.generate(**inputs, custom_generate=roe, max_new_tokens=6)
    probs = roe_reference.next_token_probs(double, ids, ids, N, roe.temperatures, SEED, **history)
    rounding.assert_close(logprobs, probs.log().float())
    expected, _ = roe_reference.score(double, context, continuation, N, roe.temperatures, SEED, **history)
    assert score == rounding.approx(expected, tokens=6)
    other = RoE(with_biased_routers(olmoe), tokenizer, n=N, temperature=0.7, seed=SEED, cache=cache)
    assert text == other.generate(["what is", "hello you"], max_new_tokens=6)
    assert tokenizer.batch_decode(generated[:, -6:], skip_special_tokens=True) == text
    assert abs(score - roe.loglikelihood("what is", " a cat")) > 1e-2


@pytest.mark.parametrize("keys", [{"adaptive": "margin", "bands": [(0.5, N)]}, {"weights": "perturbed"}])
def test_every_kind_of_ensemble_nests(olmoe, tokenizer, keys):
    roe = RoE(olmoe, tokenizer, n=N, temperature=0.7, **keys)
    other = RoE(with_biased_routers(olmoe), tokenizer, n=N, temperature=0.7, **keys)
    with override(olmoe, biased):
        found = roe.loglikelihood("what is", [" a cat", "b"]), roe.generate("what is", max_new_tokens=6)
    assert found[0] == rounding.approx(other.loglikelihood("what is", [" a cat", "b"]), tokens=6)
    assert found[1] == other.generate("what is", max_new_tokens=6)


def test_a_policy_that_changes_nothing_changes_no_ensemble(tokenizer):
    def as_it_is(router, routing):
        index_TK = router.choose(router.scores(routing.logits_TE), routing.index_TK.shape[-1])
        return Routing(routing.logits_TE, router.weights(routing.logits_TE, index_TK), index_TK)

    for family in ("olmoe", "mixtral", "gpt_oss", "deepseek_v3", "llama4_text", "jetmoe"):
        model = small_model(family)
        roe = RoE(model, tokenizer, n=N, temperature=0.7)
        plain = roe.loglikelihood("what is", " a cat")
        for policy in (as_it_is, lambda router, routing: None):
            with override(model, policy):
                assert roe.loglikelihood("what is", " a cat") == rounding.approx(plain, tokens=6), family


def test_recurrent_models_nest(tokenizer):
    model = build("qwen3_next", attention_kinds.RECURRENT["qwen3_next"])
    roe = RoE(model, tokenizer, n=2, temperature=0.9)
    plain = roe.loglikelihood("hello", "a")

    def lowered(router, routing):
        logits_TE = routing.logits_TE.clone()
        logits_TE[:, 0] -= 5
        index_TK = router.choose(router.scores(logits_TE), routing.index_TK.shape[-1])
        return Routing(logits_TE, router.weights(logits_TE, index_TK), index_TK)

    with override(model, lowered):
        assert abs(roe.loglikelihood("hello", "a") - plain) > 1e-4


@pytest.mark.parametrize("family", ["olmoe", "mixtral", "llama4_text", "jetmoe"])
def test_a_choice_that_noise_would_overwrite_is_refused(family, tokenizer):
    model = small_model(family)
    roe = RoE(model, tokenizer, n=N, temperature=0.7)
    with (
        pytest.raises(RoutingError, match="adds noise to the logits.*logits_TE"),
        override(model, second_best),
    ):
        roe.loglikelihood("what is", " a cat")
    uniform = lambda router, routing: routing._replace(weights_TK=torch.full_like(routing.weights_TK, 0.5))  # noqa: E731
    with pytest.raises(RoutingError, match="logits_TE"), override(model, uniform):
        roe.loglikelihood("what is", " a cat")
    with override(model, second_best):  # one sample has no noise
        RoE(model, tokenizer, n=1).loglikelihood("what is", " a cat")


def test_record_and_metrics_inside_override_see_its_decisions(olmoe, tokenizer):
    other, ids = with_biased_routers(olmoe), torch.tensor([tokenizer.encode("what is a cat")])
    with torch.no_grad():
        with override(olmoe, biased), record(olmoe) as routes:
            olmoe(ids)
        with record(other) as expected:
            other(ids)
        with override(olmoe, biased), replay(olmoe, routes):
            logits = olmoe(ids).logits
    assert all(torch.equal(a, b) for a, b in zip(routes.indices, expected.indices, strict=True))
    torch.testing.assert_close(logits, other(ids).logits, atol=1e-4, rtol=0)
    texts = ["what is a cat and why", "hello"]
    with override(olmoe, biased):
        found = expert_metrics(olmoe, texts, tokenizer)
    assert found | {"seconds": 0} == expert_metrics(other, texts, tokenizer) | {"seconds": 0}
    with pytest.raises(RoutingError, match="logits_TE"), override(olmoe, second_best):
        expert_metrics(olmoe, texts, tokenizer)


def test_what_does_not_nest_is_refused_by_name(olmoe, tokenizer):
    roe, c3po = (
        RoE(olmoe, tokenizer, n=2),
        C3PO(olmoe, tokenizer, PAIRS, k=2, layers="last2", steps=1, core_experts=4),
    )
    lm = moe_lab.lm(olmoe, tokenizer, "roe", n=2)
    asked = [lambda: roe.loglikelihood("a", "b"), lambda: roe.generate("a", max_new_tokens=1)]
    asked += [lambda: roe.next_token_logprobs([1]), lambda: c3po.loglikelihood("a", "b")]
    asked += [lambda: lm.loglikelihood([])]
    asked += [lambda: olmoe.generate(torch.tensor([[1]]), custom_generate=roe, max_new_tokens=1)]
    with torch.no_grad(), record(olmoe) as routes:
        olmoe(torch.tensor([[1, 2]]))
    for ask in asked:
        with pytest.raises(RoutingError, match=r"inside record\(model\)"), record(olmoe):
            ask()
        with pytest.raises(RoutingError, match=r"inside replay\(model, routes\)"), replay(olmoe, routes):
            ask()
    with pytest.raises(RoutingError, match=r"C3PO.* inside override"), override(olmoe, biased):
        c3po.loglikelihood("a", "b")
    with pytest.raises(RoutingError, match=r"C3PO.* inside override"), override(olmoe, biased):
        C3PO(olmoe, tokenizer, PAIRS, k=2, layers="last2", steps=1, core_experts=4)
    with pytest.raises(ModelError, match="RoE"):
        RoE(roe, tokenizer)


def test_an_ensemble_inside_an_ensemble_is_refused(olmoe, tokenizer):
    roe = RoE(olmoe, tokenizer, n=2)

    def processor(ids, scores):
        RoE(olmoe, tokenizer, n=2).next_token_logprobs(ids[0])
        return scores

    with pytest.raises(RoutingError, match="RoE inside RoE"):
        roe.generate("a", max_new_tokens=2, logits_processor=[processor])
    assert roe.generate("a", max_new_tokens=2)  # closed again
    assert RoE(make_model("olmoe"), tokenizer, n=2).generate("a", max_new_tokens=2)
