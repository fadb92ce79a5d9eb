"""Breaks if a policy changes nothing or a wrong one is accepted, if what is frozen is trained, if expert metrics differ from a
loop over texts, if `tiny` has another dtype or number, shares a model, or shows a progress bar in a notebook, or if lm-eval
evaluates a model under a method otherwise than the command does.
"""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import moe_lab
from moe_lab import expert_metrics, freeze, override, record
from moe_lab.config.schema import ModelConfig
from moe_lab.errors import RoutingError
from moe_lab.models.lm_eval_internals import answers_of_lm_eval, instance_of
from moe_lab.models.load import load_model
from moe_lab.models.source import TINY
from moe_lab.routing import find_routers
from tests.support import rounding
from tests.support.adapters import make_adapter
from tests.support.models import left_padded, make_model, small_model
from tests.support.tiers import by_family

IDS = torch.tensor([[3, 1, 4, 1, 5]])


def second_best(router, routing):
    scores_TE = router.scores(routing.logits_TE).scatter(-1, routing.index_TK[:, :1], -torch.inf)
    index_TK = router.choose(scores_TE, k=routing.index_TK.shape[-1])
    return routing._replace(
        index_TK=index_TK, weights_TK=router.weights(routing.logits_TE, index_TK)
    )


def test_without_the_best_expert(olmoe):
    """Equal to a model whose router never chooses them: their logit is lowered in a loop over tokens."""
    seen = {}

    def by_loop(router, args, output):
        logits, weights, index = (tensor.clone() for tensor in output)
        probs = logits.softmax(-1)
        for t in range(len(logits)):
            order = logits[t].argsort(descending=True)[1:3]
            index[t], weights[t] = order, probs[t, order]
        seen[router] = index
        return logits, weights, index

    with torch.no_grad():
        with override(olmoe, second_best) as routers:
            found = olmoe(IDS).logits
        handles = [router.module.register_forward_hook(by_loop) for router in routers]
        expected = olmoe(IDS).logits
        for handle in handles:
            handle.remove()
        assert len(seen) == 4 and torch.allclose(found, expected, atol=1e-5)
        assert not torch.allclose(olmoe(IDS).logits, expected, atol=1e-2)


def test_a_policy_changes_generate_and_one_that_no_token_meets_is_an_error(tokenizer, olmoe):
    model = small_model("mixtral")
    inputs = left_padded(tokenizer, ["hello", "a longer prompt"])
    plain = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    with override(model, second_best):
        assert not torch.equal(model.generate(**inputs, max_new_tokens=6, do_sample=False), plain)
    with override(model, lambda router, routing: None):
        assert torch.equal(model.generate(**inputs, max_new_tokens=6, do_sample=False), plain)
    with pytest.raises(RoutingError, match="changed nothing"), override(olmoe, second_best):
        make_model("olmoe", seed=1)(IDS)
    with pytest.raises(ZeroDivisionError), override(olmoe, second_best):
        1 / 0  # noqa: B018


# freeze

TRAINED_IDS = torch.arange(24).view(2, 12)


def step(model, optimizer):
    optimizer.zero_grad()
    model(TRAINED_IDS, labels=TRAINED_IDS).loss.backward()
    optimizer.step()


def test_a_frozen_router_stays_byte_for_byte():
    model = make_model("olmoe")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    step(model, optimizer)  # momentum
    routers = [router.module.weight for router in find_routers(model)]
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    with freeze(model, "router") as count:
        assert count == sum(weight.numel() for weight in routers)
        step(model, optimizer)
    same = {name for name, value in model.named_parameters() if torch.equal(value, before[name])}
    assert same == {
        name for name, value in model.named_parameters() if any(value is w for w in routers)
    }
    step(model, optimizer)
    assert not torch.equal(routers[0], before["model.layers.0.mlp.gate.weight"])


def test_parameters_that_were_not_trained_stay_so():
    model = make_model("mixtral")
    model.lm_head.weight.requires_grad = False
    with pytest.raises(ZeroDivisionError), freeze(model, "experts", "router"):
        assert not find_routers(model)[0].module.weight.requires_grad
        1 / 0  # noqa: B018
    assert (
        find_routers(model)[0].module.weight.requires_grad
        and not model.lm_head.weight.requires_grad
    )


# expert_metrics

TEXTS = ["what is a cat and why", "hello", "two and two are four, and four and four are eight"]


@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "gpt_oss"]))
def test_load_balance_and_accuracy_are_those_of_a_loop(family, tokenizer):
    model = small_model(family)
    found = expert_metrics(model, TEXTS, tokenizer)
    selected, right, predicted = [Counter() for _ in range(4)], 0, 0
    for text in TEXTS:
        ids = torch.tensor([tokenizer.encode(text)])
        with torch.no_grad(), record(model) as routes:
            guesses = model(ids).logits[0, :-1].argmax(-1).tolist()
        right += sum(
            guess == token for guess, token in zip(guesses, ids[0, 1:].tolist(), strict=True)
        )
        predicted += len(guesses)
        for layer, index_TK in enumerate(routes.indices):
            selected[layer].update(index_TK.flatten().tolist())
    layers = [entropy(counts) for counts in selected if counts]
    assert found["load_balance"]["counted"] == pytest.approx(sum(layers) / len(layers))
    assert found["accuracy"]["value"] == pytest.approx(right / predicted)
    assert {"collaboration", "capacity", "specialization"} <= found.keys()
    by_ids = expert_metrics(model, [tokenizer.encode(text) for text in TEXTS])
    assert by_ids | {"seconds": 0} == found | {"seconds": 0}


def entropy(counts):
    return -sum(n / counts.total() * math.log2(n / counts.total()) for n in counts.values())


# tiny


def test_it_is_the_model_of_the_command(capfd):
    model, tokenizer = moe_lab.tiny()
    assert capfd.readouterr() == ("", "")
    loaded = load_model(ModelConfig(), dtype="auto", device="auto", offline=True)
    ids = tokenizer("ben has 3 apples .", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(model(ids).logits, loaded.model(ids).logits)
    assert model.dtype == loaded.model.dtype and not model.training
    model, _ = moe_lab.tiny(noisy=True)
    assert (model.config.num_hidden_layers, model.config.num_experts) == (3, 8)
    loaded = load_model(ModelConfig(name="tiny-noisy"), dtype="auto", device="auto", offline=True)
    assert torch.equal(model.lm_head.weight, loaded.model.lm_head.weight)


def test_prompts_are_padded_on_the_left_and_no_model_is_shared():
    (model, tokenizer), (other, _) = moe_lab.tiny(), moe_lab.tiny()
    mask = tokenizer(["1", "1 2 3 4 5"], padding=True).attention_mask
    assert mask[0][0] == 0 and mask[0][-1] == 1
    with torch.no_grad():
        next(model.parameters()).zero_()
    assert next(other.parameters()).any()


# lm


TASKS = Path(moe_lab.__file__).parent / "tasks" / "toy"
SCORED = [("hello", " world"), ("what is", " a cat")]


def instances(kind, arguments):
    return [instance_of(kind, each) for each in arguments]


def test_requests_are_answered_by_the_ensemble(tokenizer):
    model = small_model("mixtral")
    roe = moe_lab.RoE(model, tokenizer, n=3, temperature=0.7, seed=1)
    lm = moe_lab.lm(model, tokenizer, "roe", n=3, temperature=0.7, seed=1)
    scores = [value for value, _ in lm.loglikelihood(instances("loglikelihood", SCORED))]
    assert scores == rounding.approx(
        roe.loglikelihood(*map(list, zip(*SCORED, strict=True))), tokens=6
    )
    (text,) = lm.generate_until(
        instances("generate_until", [("hello", {"until": [], "max_gen_toks": 6})])
    )
    assert text == roe.generate("hello", max_new_tokens=6)
    plain = moe_lab.lm(model, tokenizer)
    assert abs(plain.loglikelihood(instances("loglikelihood", SCORED))[0][0] - scores[0]) > 1e-3
    assert not any(module._forward_hooks for module in model.modules())
    dense = moe_lab.lm(make_model("llama"), tokenizer)
    assert dense.loglikelihood(instances("loglikelihood", SCORED))[0][0] < 0
    rolled = lm.loglikelihood_rolling(instances("loglikelihood_rolling", [("what is a cat",)]))
    assert answers_of_lm_eval("loglikelihood_rolling", rolled)[0] < 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts", [["q_proj", "v_proj"], ["experts.down_proj", "gate.weight"]], ids=["attention", "MoE"]
)
def test_an_adapter_scores_as_in_lm_evals_own_model(parts, tmp_path):
    """`peft=` of `--model hf`; also under RoE without noise."""
    import lm_eval
    import peft
    from transformers import AutoModelForCausalLM

    key = "target_modules" if parts == ["q_proj", "v_proj"] else "target_parameters"
    kind = peft.LoraConfig(**{"target_modules": [], key: parts}, r=4, task_type="CAUSAL_LM")
    make_adapter(AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32), kind, tmp_path)
    manager = lm_eval.tasks.TaskManager(include_path=str(TASKS), include_defaults=False)

    def answers(model: Any, arguments: str | None = None) -> list[float]:
        given = {
            "model": model,
            "model_args": arguments,
            "device": "cpu",
            "limit": 6,
            "bootstrap_iters": 0,
        }
        found = lm_eval.simple_evaluate(**given, tasks=["toy_choice"], task_manager=manager)
        return [value for own in found["samples"]["toy_choice"] for [(value, _)] in own["resps"]]

    plain = answers("hf", f"pretrained={TINY},dtype=float32")
    expected = answers("hf", f"pretrained={TINY},dtype=float32,peft={tmp_path}")
    assert max(abs(one - other) for one, other in zip(plain, expected, strict=True)) > 1e-2
    source = ModelConfig(path=str(TINY), peft=str(tmp_path))
    adapted = load_model(source, dtype="float32", device="cpu", offline=True)
    for method in ({}, {"method": "roe", "n": 2, "temperature": 0}):
        found = answers(moe_lab.lm(adapted.model, adapted.tokenizer, **method))
        assert found == rounding.approx(expected, tokens=6)
