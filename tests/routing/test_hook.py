"""Policies are on every router, are removed on exit, and raise where they have no effect;
contexts nest.

Broken by: a policy that single passes of the engine skip, one of the caller's own that a method
overwrites, or a layer that is left out by intent and reported as bypassed.
"""

import copy
import math
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import moe_lab
from moe_lab import C3PO, RoE, expert_metrics, override, record
from moe_lab.errors import ModelError, RoutingError
from moe_lab.routing import GumbelTopK, Routing, routed, supported
from moe_lab.routing.families import FAMILIES
from moe_lab.routing.hook import is_left_out, leaving_out, opened
from tests.support import roe_reference, rounding
from tests.support.families import VOCAB
from tests.support.models import left_padded, make_model, small_model
from tests.support.routed_by_hand import dropping, without_weakest
from tests.support.slow_routing import noisy_tokens

IDS = torch.arange(2 * 9).reshape(2, 9) * 7 % VOCAB


def logits(model, part="logits", **options):
    with torch.no_grad():
        return model(IDS, **options)[part]


def hooks_of(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_model_is_restored_after_an_exception(moe_model):
    clean = logits(moe_model)
    hooks = hooks_of(moe_model)
    with pytest.raises(ZeroDivisionError), routed(moe_model, lambda router, routing: 1 / 0):
        logits(moe_model)
    assert hooks_of(moe_model) == hooks
    assert torch.equal(logits(moe_model), clean)


def test_a_dense_model_is_refused_with_the_families_and_the_way_out():
    with (
        pytest.raises(ModelError) as caught,
        routed(make_model("llama"), lambda router, routing: None),
    ):
        pass
    for family in supported():
        assert family in str(caught.value)
    assert "method=base" in str(caught.value)


def test_a_bypassed_router_is_named(olmoe, monkeypatch):
    monkeypatch.setattr(olmoe.model.layers[2].mlp, "forward", lambda hidden: hidden)
    named = pytest.raises(RoutingError, match=r"model\.layers\.2\.mlp\.gate")
    with named, routed(olmoe, lambda router, routing: None):
        logits(olmoe)


@pytest.mark.parametrize("part", ["index_TK", "weights_TK", "both"])
def test_a_decision_about_other_tokens_is_named_before_the_experts_run(olmoe, part):
    """Without the check the experts stop somewhere in a product, with an index out of bounds."""

    def shortened(router, routing):
        names = ("index_TK", "weights_TK") if part == "both" else (part,)
        return routing._replace(**{name: getattr(routing, name)[:-1] for name in names})

    with (
        pytest.raises(RoutingError, match=r"layers\.0\.mlp\.gate.* shape"),
        routed(olmoe, shortened),
    ):
        logits(olmoe)


@pytest.mark.parametrize("error", [None, ValueError, RuntimeError, RoutingError])
def test_nan_is_named_by_layer_also_where_it_ends_in_another_error(error):
    model = make_model("olmoe")
    with torch.no_grad():
        model.model.layers[1].mlp.gate.weight[3, 3] = float("nan")
    named = pytest.raises(RoutingError, match="MoE layer 1")
    with named as raised, torch.inference_mode(), routed(model, lambda router, routing: None):
        logits(model)
        model.model.layers[1].mlp.gate.weight[3, 3] = 0.0
        logits(model)  # a later pass hides no earlier one
        if error:
            raise error("the tokens are NaN")
    assert error is None or isinstance(raised.value.__context__, error)


def test_recorder_of_transformers_still_sees_clean_logits(olmoe):
    clean = logits(olmoe, output_router_logits=True, part="router_logits")
    policy = GumbelTopK([0.0, 0.0, 0.0, 0.9], seed=0)
    policy.expect(noisy_tokens(IDS.numel()))
    with routed(olmoe, policy):
        noisy = logits(olmoe, output_router_logits=True, part="router_logits")
    for a, b in zip(clean, noisy, strict=True):
        assert torch.equal(a, b)


def test_parts_of_a_layer_are_left_out_inside_the_context_alone():
    layers = [nn.Sequential(nn.Linear(1, 1)) for _ in range(2)]
    with leaving_out(layers[:1]):
        with leaving_out(layers):
            assert is_left_out(layers[1][0])
        assert is_left_out(layers[0][0])
        assert not is_left_out(layers[1][0])
    assert not is_left_out(layers[0])


N = 3
SEED = 5
PAIRS = [("two and two", " four"), ("one and one are", " two"), ("a cat is", " an animal")]
TEXTS = ["what is a cat and why", "hello"]


def drop(router, routing):
    """A policy of one's own: drop the weakest of the experts that were decided on."""
    return routing._replace(weights_TK=without_weakest(routing.weights_TK))


@pytest.mark.parametrize("cache", ["clean", "standard"])
def test_a_policy_of_ones_own_decides_last_inside_roe(olmoe, tokenizer, cache):
    dropping_model = dropping(olmoe)
    double = roe_reference.in_float64(dropping_model)
    roe = RoE(olmoe, tokenizer, n=N, temperature=0.7, seed=SEED, cache=cache)
    ids = [7, 9, 1, 30]
    context = tokenizer.encode("what is")
    continuation = tokenizer.encode(" a cat")
    with override(olmoe, drop):
        logprobs = roe.next_token_logprobs(ids)
        score = roe.loglikelihood("what is", " a cat")
        text = roe.generate(["what is", "hello you"], max_new_tokens=6)
        inputs = left_padded(tokenizer, ["what is", "hello you"])
        generated = olmoe.generate(**inputs, custom_generate=roe, max_new_tokens=6)
    probs = roe_reference.next_token_probs(double, ids, ids, N, roe.temperatures, SEED, cache=cache)
    rounding.assert_close(logprobs, probs.log().float())
    expected, _ = roe_reference.score(
        double, context, continuation, N, roe.temperatures, SEED, cache=cache
    )
    assert score == rounding.approx(expected, tokens=6)
    plain_roe = RoE(dropping_model, tokenizer, n=N, temperature=0.7, seed=SEED, cache=cache)
    assert text == plain_roe.generate(["what is", "hello you"], max_new_tokens=6)
    assert tokenizer.batch_decode(generated[:, -6:], skip_special_tokens=True) == text
    assert abs(score - roe.loglikelihood("what is", " a cat")) > 1e-2


@pytest.mark.slow
def test_a_policy_of_ones_own_decides_last_inside_c3po_and_metrics(olmoe, tokenizer):
    keys = {"k": 2, "layers": "last2", "steps": 2, "core_experts": 4, "learning_rate": [0.5, 0.5]}
    dropping_model = dropping(olmoe)
    with override(olmoe, drop):
        c3po = C3PO(olmoe, tokenizer, PAIRS, **keys)
        measured = (
            c3po.loglikelihood("one cat is", [" a", " two"]),
            c3po.generate("hello", max_new_tokens=4),
        )
        metrics = expert_metrics(olmoe, TEXTS, tokenizer)
        kept_metrics = []
        for text in TEXTS:
            with record(olmoe) as routes:
                olmoe(**tokenizer(text, return_tensors="pt"))
            strongest = [
                routes.weights[i].topk(routes.weights[i].shape[-1] - 1).indices for i in range(4)
            ]
            kept_metrics.append(
                torch.stack([routes.indices[i].gather(-1, strongest[i]) for i in range(4)], dim=-2)
            )
    plain_c3po = C3PO(dropping_model, tokenizer, PAIRS, **keys)
    assert measured[0] == rounding.approx(
        plain_c3po.loglikelihood("one cat is", [" a", " two"]), tokens=6
    )
    assert measured[1] == plain_c3po.generate("hello", max_new_tokens=4)
    assert (
        abs(
            measured[0][0] - C3PO(olmoe, tokenizer, PAIRS, **keys).loglikelihood("one cat is", " a")
        )
        > 1e-2
    )
    expected = expert_metrics(dropping_model, TEXTS, tokenizer)
    for name in ("accuracy", "specialization"):
        assert metrics[name] == expected[name], name
    shares = [
        torch.cat(kept_metrics)[:, i].flatten().bincount(minlength=8).double() for i in range(4)
    ]
    entropies = [torch.distributions.Categorical(share).entropy() / math.log(2) for share in shares]
    assert metrics["load_balance"]["counted"] == pytest.approx(float(sum(entropies) / 4), rel=1e-6)


def test_observers_inside_see_what_is_decided_last(olmoe, tokenizer):
    policy = GumbelTopK([0.0, 0.0, 0.0, 0.9], seed=0)
    policy.expect(noisy_tokens(IDS.numel()))
    with (
        override(olmoe, drop),
        record(olmoe) as before,
        routed(olmoe, policy),
        record(olmoe) as routes,
    ):
        logits(olmoe)
    dropping_model = dropping(olmoe)
    with routed(dropping_model, policy), record(dropping_model) as expected:
        logits(dropping_model)
    assert torch.equal(routes.indices[3], expected.indices[3])
    assert torch.equal(routes.weights[3], without_weakest(expected.weights[3]))
    assert torch.equal(before.weights[3], routes.weights[3]), (
        "also where a policy is installed after it"
    )


def test_a_policy_that_leaves_the_pathways_out_is_told(olmoe, tokenizer):
    def own(router, routing):
        index_TK = router.choose(router.scores(routing.logits_TE), routing.index_TK.shape[-1])
        return Routing(routing.logits_TE, router.weights(routing.logits_TE, index_TK), index_TK)

    with override(olmoe, own):
        c3po = C3PO(olmoe, tokenizer, PAIRS, k=2, layers="last2", steps=1)
        with pytest.raises(RoutingError, match="no effect on the loss"):
            c3po.loglikelihood("one cat is", " a")


def test_a_policy_that_changes_nothing_changes_no_ensemble(tokenizer):
    """In all forms of a router's output."""
    for family in ("olmoe", "mixtral", "gpt_oss", "deepseek_v3", "llama4_text", "jetmoe", "dbrx"):
        model = small_model(family)
        roe = RoE(model, tokenizer, n=N, temperature=0.7)
        plain = roe.loglikelihood("what is", " a cat")
        for policy in (lambda router, routing: routing, lambda router, routing: None):
            with override(model, policy):
                assert roe.loglikelihood("what is", " a cat") == rounding.approx(plain, tokens=6), (
                    family
                )


def test_recurrent_models_nest(tokenizer):
    model = small_model("qwen3_next")
    roe = RoE(model, tokenizer, n=2, temperature=0.9)
    plain = roe.loglikelihood("hello", "a")

    def lowered(router, routing):
        logits_TE = routing.logits_TE.clone()
        logits_TE[:, 0] -= 5
        index_TK = router.choose(router.scores(logits_TE), routing.index_TK.shape[-1])
        return Routing(logits_TE, router.weights(logits_TE, index_TK), index_TK)

    with override(model, lowered):
        assert abs(roe.loglikelihood("hello", "a") - plain) > 1e-4


def test_what_does_not_nest_is_refused_by_name(olmoe, tokenizer):
    roe = RoE(olmoe, tokenizer, n=2)
    c3po = C3PO(olmoe, tokenizer, PAIRS, k=2, layers="last2", steps=1, core_experts=4)
    lm = moe_lab.lm(olmoe, tokenizer, "roe", n=2)
    calls = [
        lambda: roe.loglikelihood("a", "b"),
        lambda: roe.generate("a", max_new_tokens=1),
        lambda: roe.next_token_logprobs([1]),
        lambda: c3po.loglikelihood("a", "b"),
        lambda: lm.loglikelihood([]),
        lambda: olmoe.generate(torch.tensor([[1]]), custom_generate=roe, max_new_tokens=1),
    ]
    for ask in calls:
        with pytest.raises(RoutingError, match=r"inside record\(model\)"), record(olmoe):
            ask()
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


def test_every_family_is_known_by_a_model_type_of_transformers():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    unknown = [family.name for family in FAMILIES if family.model_type not in CONFIG_MAPPING_NAMES]
    assert unknown == ["DeepSeek-MoE", "MoE design"], "they are those of moe_lab.models.designs"


def test_routing_that_gradient_checkpointing_would_repeat_is_refused():
    def other_experts(router, routing):
        return routing._replace(index_TK=1 - routing.index_TK % 2)

    model = make_model("olmoe").train()
    ids = torch.arange(12).view(2, 6)

    # a caller's own checkpointing is known only when its backward pass calls the router
    block = model.model.layers[1].mlp
    forward = block.forward
    block.forward = lambda hidden: checkpoint(forward, hidden, use_reentrant=False)
    with pytest.raises(RoutingError, match="backward pass"), override(model, other_experts):
        model(ids, labels=ids).loss.backward()
    block.forward = forward

    # that of transformers is known before the pass
    model.activation_checkpointing_enable()
    for make_context in (
        lambda: override(model, other_experts),
        lambda: record(model),
        lambda: routed(model, other_experts),
    ):
        with (
            pytest.raises(RoutingError, match="activation_checkpointing_disable"),
            make_context(),
        ):
            model(ids, labels=ids)
        with torch.no_grad(), make_context():
            model(ids)


def in_another_thread(function):
    """What a function raises in a thread of its own; None if it ends."""
    raised = []

    def run():
        try:
            function()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def test_passes_of_two_threads_at_once_are_refused_in_their_own_words(olmoe):
    """One that began in another thread would clear what the check for bypassed routers has seen."""
    clean = logits(olmoe)
    errors = []

    def meanwhile(router, routing):
        if router.layer == 1 and threading.current_thread() is threading.main_thread():
            errors.append(in_another_thread(lambda: logits(olmoe)))

    with routed(olmoe, meanwhile):
        assert torch.equal(logits(olmoe), clean), "the first thread's pass goes on"
        assert in_another_thread(lambda: logits(olmoe)) is None, "one after the other is right"
    [error] = errors
    assert isinstance(error, RoutingError)
    assert str(error).startswith("Two threads run the model at the same time")
    assert "threading.Lock" in str(error)


def test_an_ensemble_in_a_second_thread_is_refused_in_its_own_words(olmoe):
    with opened(olmoe, "RoE", alone=True):
        error = in_another_thread(opened(olmoe, "C3PO", alone=True).__enter__)
    assert isinstance(error, RoutingError)
    assert str(error).startswith("C3PO: another thread runs RoE on this model. ")
    with opened(olmoe, "C3PO", alone=True):
        pass


def test_an_ensemble_beside_an_override_of_another_thread_is_refused(olmoe, tokenizer):
    """Its noise would route the other thread's passes, too.

    Inside one of its own thread it runs.
    """
    roe = RoE(olmoe, tokenizer, n=3)
    with override(olmoe, lambda router, routing: None):
        logits(olmoe)
        error = in_another_thread(lambda: roe.loglikelihood("a", " b"))
        roe.loglikelihood("a", " b")
    assert isinstance(error, RoutingError)
    assert str(error).startswith("RoE: another thread runs override(model) on this model. ")


def test_records_of_two_models_of_a_class_end_in_any_order(olmoe):
    """`record` changes `generate` of the class.

    The class stays changed for as long as one of its models is recorded.
    """
    second_model = copy.deepcopy(olmoe)
    kind = type(olmoe)
    before = kind.generate
    first = record(olmoe)
    second = record(second_model)
    first.__enter__()
    second.__enter__()
    logits(olmoe)
    logits(second_model)
    first.__exit__(None, None, None)
    with pytest.raises(RoutingError, match="beam_search"):
        second_model.generate(IDS, num_beams=2, max_new_tokens=2)
    assert olmoe.generate(IDS, num_beams=2, max_new_tokens=2).shape[0] == len(IDS)
    second.__exit__(None, None, None)
    assert kind.generate is before
