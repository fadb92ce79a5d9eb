"""Breaks if a policy changes nothing or a wrong one is accepted, if what is frozen is trained,
if expert metrics differ from a loop over texts, if `tiny` has another dtype or number, shares
a model, or shows a progress bar in a notebook, or if lm-eval evaluates a model under a method
otherwise than the command does.
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


# override


def second_best(router, routing):
    """A policy that never takes a token's best expert."""
    best_T1 = routing.index_TK[:, :1]
    scores_TE = router.scores(routing.logits_TE).scatter(-1, best_T1, -torch.inf)
    index_TK = router.choose(scores_TE, k=routing.index_TK.shape[-1])
    weights_TK = router.weights(routing.logits_TE, index_TK)
    return routing._replace(index_TK=index_TK, weights_TK=weights_TK)


def second_best_by_loop(router, args, output):
    """The same for OLMoE, as a hook of the router: experts 2 and 3 by falling logits."""
    logits_TE, weights_TK, index_TK = (tensor.clone() for tensor in output)
    for t in range(len(logits_TE)):
        experts = logits_TE[t].argsort(descending=True)[1:3]
        index_TK[t] = experts
        weights_TK[t] = logits_TE[t].softmax(-1)[experts]
    return logits_TE, weights_TK, index_TK


@torch.no_grad()
def test_without_the_best_expert(olmoe):
    """Equal to a model whose router never chooses them, in a loop over tokens."""
    with override(olmoe, second_best) as routers:
        logits = olmoe(IDS).logits
    assert len(routers) == 4

    handles = [router.module.register_forward_hook(second_best_by_loop) for router in routers]
    expected = olmoe(IDS).logits
    for handle in handles:
        handle.remove()

    assert torch.allclose(logits, expected, atol=1e-5)
    assert not torch.allclose(olmoe(IDS).logits, expected, atol=1e-2)


def test_a_policy_changes_generate(tokenizer):
    model = small_model("mixtral")
    inputs = left_padded(tokenizer, ["hello", "a longer prompt"])

    def generate() -> torch.Tensor:
        return model.generate(**inputs, max_new_tokens=6, do_sample=False)

    ids = generate()
    with override(model, second_best):
        assert not torch.equal(generate(), ids)
    with override(model, lambda router, routing: None):
        assert torch.equal(generate(), ids)


def test_a_policy_that_no_token_meets_is_an_error(olmoe):
    with pytest.raises(RoutingError, match="changed nothing"), override(olmoe, second_best):
        make_model("olmoe", seed=1)(IDS)


def test_an_error_under_a_policy_is_raised(olmoe):
    with pytest.raises(ZeroDivisionError), override(olmoe, second_best):
        raise ZeroDivisionError


# freeze

TRAINED_IDS = torch.arange(24).view(2, 12)


def step(model, optimizer):
    optimizer.zero_grad()
    model(TRAINED_IDS, labels=TRAINED_IDS).loss.backward()
    optimizer.step()


def values_of(model) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def test_a_frozen_router_stays_byte_for_byte():
    model = make_model("olmoe")
    routers = {f"model.layers.{layer}.mlp.gate.weight" for layer in range(4)}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    step(model, optimizer)  # momentum
    before = values_of(model)

    with freeze(model, "router") as frozen_values:
        step(model, optimizer)

    after = values_of(model)
    assert frozen_values == sum(before[name].numel() for name in routers)
    unchanged = {name for name in before if torch.equal(after[name], before[name])}
    assert unchanged == routers

    step(model, optimizer)
    for name in routers:
        assert not torch.equal(values_of(model)[name], before[name])


def test_parameters_that_were_not_trained_stay_so():
    model = make_model("mixtral")
    router_weight = find_routers(model)[0].module.weight
    model.lm_head.weight.requires_grad = False
    with pytest.raises(ZeroDivisionError), freeze(model, "experts", "router"):
        assert not router_weight.requires_grad
        raise ZeroDivisionError
    assert router_weight.requires_grad
    assert not model.lm_head.weight.requires_grad


# expert_metrics

TEXTS = ["what is a cat and why", "hello", "two and two are four, and four and four are eight"]


@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "gpt_oss"]))
def test_load_balance_and_accuracy_are_those_of_a_loop(family, tokenizer):
    model = small_model(family)
    selections: list[Counter] = [Counter() for _ in range(4)]
    right = 0
    predicted = 0
    for text in TEXTS:
        ids = tokenizer.encode(text)
        with torch.no_grad(), record(model) as routes:
            logits_TV = model(torch.tensor([ids])).logits[0]
        for guess, token in zip(logits_TV[:-1].argmax(-1).tolist(), ids[1:], strict=True):
            right += guess == token
            predicted += 1
        for layer, index_TK in enumerate(routes.indices):
            selections[layer].update(index_TK.flatten().tolist())
    entropies = [entropy(counts) for counts in selections if counts]

    metrics = expert_metrics(model, TEXTS, tokenizer)

    mean_entropy = sum(entropies) / len(entropies)
    assert metrics["load_balance"]["counted"] == pytest.approx(mean_entropy)
    assert metrics["accuracy"]["value"] == pytest.approx(right / predicted)
    assert metrics.keys() >= {"collaboration", "capacity", "specialization"}


@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "gpt_oss"]))
def test_expert_metrics_of_token_ids_are_those_of_texts(family, tokenizer):
    model = small_model(family)
    of_texts = expert_metrics(model, TEXTS, tokenizer)
    of_ids = expert_metrics(model, [tokenizer.encode(text) for text in TEXTS])
    assert of_ids | {"seconds": 0} == of_texts | {"seconds": 0}


def entropy(counts: Counter) -> float:
    """In bits."""
    total = counts.total()
    return -sum(count / total * math.log2(count / total) for count in counts.values())


# tiny


def load_by_name(name: str):
    """The model of the command's `model=`."""
    return load_model(ModelConfig(name=name), dtype="auto", device="auto", offline=True).model


def test_tiny_is_the_model_of_the_command(capfd):
    model, tokenizer = moe_lab.tiny()
    assert capfd.readouterr() == ("", "")
    command_model = load_by_name("tiny")
    ids = tokenizer("ben has 3 apples .", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(model(ids).logits, command_model(ids).logits)
    assert model.dtype == command_model.dtype
    assert not model.training


def test_the_noisy_tiny_is_the_model_of_the_command():
    model, _ = moe_lab.tiny(noisy=True)
    assert model.config.num_hidden_layers == 3
    assert model.config.num_experts == 8
    assert torch.equal(model.lm_head.weight, load_by_name("tiny-noisy").lm_head.weight)


def test_prompts_are_padded_on_the_left():
    _, tokenizer = moe_lab.tiny()
    short_mask, _ = tokenizer(["1", "1 2 3 4 5"], padding=True).attention_mask
    assert short_mask[0] == 0
    assert short_mask[-1] == 1


def test_no_model_is_shared():
    model, _ = moe_lab.tiny()
    other_model, _ = moe_lab.tiny()
    with torch.no_grad():
        next(model.parameters()).zero_()
    assert next(other_model.parameters()).any()


# lm


TASKS = Path(moe_lab.__file__).parent / "tasks" / "toy"
SCORED = [("hello", " world"), ("what is", " a cat")]


def scores_by(lm) -> list[float]:
    """The log-likelihoods of SCORED by an lm-eval model."""
    answers = lm.loglikelihood([instance_of("loglikelihood", pair) for pair in SCORED])
    return [log_likelihood for log_likelihood, _ in answers]


def test_requests_are_answered_by_the_ensemble(tokenizer):
    model = small_model("mixtral")
    roe = moe_lab.RoE(model, tokenizer, n=3, temperature=0.7, seed=1)
    lm = moe_lab.lm(model, tokenizer, "roe", n=3, temperature=0.7, seed=1)

    contexts = [context for context, _ in SCORED]
    continuations = [continuation for _, continuation in SCORED]
    scores = scores_by(lm)
    assert scores == rounding.approx(roe.loglikelihood(contexts, continuations), tokens=6)

    request = instance_of("generate_until", ("hello", {"until": [], "max_gen_toks": 6}))
    assert lm.generate_until([request]) == [roe.generate("hello", max_new_tokens=6)]

    base_scores = scores_by(moe_lab.lm(model, tokenizer))
    assert abs(base_scores[0] - scores[0]) > 1e-3
    for module in model.modules():
        assert not module._forward_hooks


def test_texts_are_scored_whole(tokenizer):
    lm = moe_lab.lm(small_model("mixtral"), tokenizer, "roe", n=3, temperature=0.7, seed=1)
    request = instance_of("loglikelihood_rolling", ("what is a cat",))
    [score] = answers_of_lm_eval("loglikelihood_rolling", lm.loglikelihood_rolling([request]))
    assert score < 0


def test_a_dense_model_is_scored(tokenizer):
    assert scores_by(moe_lab.lm(make_model("llama"), tokenizer))[0] < 0


def toy_choice_scores(model: Any, arguments: str | None = None) -> list[float]:
    """The log-likelihoods that lm-eval stores of all choices."""
    import lm_eval

    evaluation = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=["toy_choice"],
        task_manager=lm_eval.tasks.TaskManager(include_path=str(TASKS), include_defaults=False),
        device="cpu",
        limit=6,
        bootstrap_iters=0,
    )
    scores = []
    for sample in evaluation["samples"]["toy_choice"]:
        for [(log_likelihood, _)] in sample["resps"]:
            scores.append(log_likelihood)
    return scores


@pytest.mark.slow
@pytest.mark.parametrize(
    "targets",
    [
        pytest.param({"target_modules": ["q_proj", "v_proj"]}, id="attention"),
        pytest.param(
            {"target_modules": [], "target_parameters": ["experts.down_proj", "gate.weight"]},
            id="MoE",
        ),
    ],
)
def test_an_adapter_scores_as_in_lm_evals_own_model(targets, tmp_path):
    """`peft=` of `--model hf`; also under RoE without noise."""
    import peft
    from transformers import AutoModelForCausalLM

    adapter = peft.LoraConfig(**targets, r=4, task_type="CAUSAL_LM")
    make_adapter(AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32), adapter, tmp_path)

    base_scores = toy_choice_scores("hf", f"pretrained={TINY},dtype=float32")
    expected = toy_choice_scores("hf", f"pretrained={TINY},dtype=float32,peft={tmp_path}")
    changes = [abs(a - b) for a, b in zip(base_scores, expected, strict=True)]
    assert max(changes) > 1e-2

    source = ModelConfig(path=str(TINY), peft=str(tmp_path))
    adapted = load_model(source, dtype="float32", device="cpu", offline=True)
    base_lm = moe_lab.lm(adapted.model, adapted.tokenizer)
    roe_lm = moe_lab.lm(adapted.model, adapted.tokenizer, method="roe", n=2, temperature=0)
    assert toy_choice_scores(base_lm) == rounding.approx(expected, tokens=6)
    assert toy_choice_scores(roe_lm) == rounding.approx(expected, tokens=6)
