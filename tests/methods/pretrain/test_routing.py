"""Routers in training. Broken by: regularizers that read another choice than the experts got, or that of another pass;
hooks that stay.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from moe_lab.methods.pretrain.routing import TrainingRouting, training_routing
from moe_lab.models.designs.configuration import UNITS
from moe_lab.routing.hook import routed
from tests.support.models import make_model, make_tokenizer, small_model
from tests.support.routed_designs import Seen, made
from tests.support.tiers import by_family

LENGTH = 9


@pytest.fixture(params=["biased", *by_family(("olmoe", "deepseek", "deepseek_v3", "gpt_oss"))])
def model(request):
    """`biased`: a design with a selection bias that is not zero."""
    return made("token", bias_rate=0.1) if request.param == "biased" else small_model(request.param)


def ids(rows: int) -> Tensor:
    return torch.randint(0, 256, (rows, LENGTH), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def passed(
    model, rows: Tensor, temperature: list[float] | None, seed: int = 3
) -> tuple[Tensor, TrainingRouting, Seen]:
    """Logits of the rows (`rows` are their numbers), the policy, and what came out of the routers."""
    seen, temperature_B = Seen(), None if temperature is None else torch.tensor(temperature)
    with (
        training_routing(model, seed) as routing,
        routed(model, seen),
        routing.one_pass(rows, LENGTH, temperature_B),
    ):
        logits = model(ids(8)[rows], use_cache=False).logits
    return logits, routing, seen


def test_the_noisy_choice_is_kept(model):
    _, routing, seen = passed(model, torch.tensor([5, 2]), [3.0, 4.0])
    for layer, own in zip(routing.layers, seen.routings, strict=True):
        assert torch.equal(layer.index_TK, own.index_TK)
        assert not torch.equal(own.index_TK, own.logits_TE.topk(own.index_TK.shape[1]).indices)


def test_without_temperature_the_model_runs_as_it_is(model):
    plain = model(ids(2), use_cache=False).logits
    logits, routing, seen = passed(model, torch.arange(2), None)
    assert torch.equal(logits, plain)
    assert len(routing.layers) == len(seen.routings) > 1
    for layer, own in zip(routing.layers, seen.routings, strict=True):
        assert torch.equal(layer.logits_TE, own.logits_TE) and torch.equal(layer.index_TK, own.index_TK)


def test_a_pass_keeps_its_own_decisions_only(olmoe):
    with training_routing(olmoe, 0) as routing, torch.no_grad():
        for rows in (1, 3):
            with routing.one_pass(torch.arange(rows), LENGTH, None):
                olmoe(ids(rows), use_cache=False)
            olmoe(ids(2), use_cache=False)
            assert [len(layer.index_TK) for layer in routing.layers] == [rows * LENGTH] * 4


def test_a_dense_model_runs_without_decisions():
    dense = make_model("llama")
    temperature_B = torch.tensor([1.0, 1.0])
    with (
        torch.no_grad(),
        training_routing(dense, 0) as routing,
        routing.one_pass(torch.arange(2), LENGTH, temperature_B),
    ):
        dense(ids(2))
    assert routing.layers == []


@pytest.mark.parametrize("router", UNITS)
def test_decisions_of_words_and_sentences_are_observed(router):
    """Of each token that of its unit's first one; the model runs as it is."""
    model = made(router)
    rows = torch.tensor([make_tokenizer()("ab cd. E!").input_ids] * 2)
    with torch.no_grad():
        plain = model(rows, use_cache=False, output_router_logits=True)
        with training_routing(model, 0) as routing, routing.one_pass(torch.arange(2), LENGTH, None):
            assert torch.equal(model(rows, use_cache=False).logits, plain.logits)
    words, sentences = [0, 0, 2, 2, 2, 5, 6, 6, 8], [0, 0, 0, 0, 0, 0, 6, 6, 6]
    firsts = sentences if router == "sentence" else words
    assert len(routing.layers) == len(plain.router_logits) == 2
    for layer, logits_TE in zip(routing.layers, plain.router_logits, strict=True):
        assert torch.equal(layer.logits_TE, logits_TE)
        if router != "word-hash":  # whose logits are 0: the word's id decides
            assert torch.equal(layer.index_TK, logits_TE.softmax(-1).topk(2).indices)
        for row in layer.index_TK.unflatten(0, (2, LENGTH)):
            assert torch.equal(row, row[firsts])
            assert len(set(map(tuple, row[sorted(set(firsts))].tolist()))) > 1


def test_router_logits_of_expert_choice_are_observed():
    model = made("expert")
    with torch.no_grad():
        plain = model(ids(2), output_router_logits=True)
        with training_routing(model, 0) as routing, routing.one_pass(torch.arange(2), LENGTH, None):
            assert torch.equal(model(ids(2)).logits, plain.logits)
    assert len(routing.layers) == len(plain.router_logits) == 2
    for layer, logits_TE in zip(routing.layers, plain.router_logits, strict=True):
        assert torch.equal(layer.logits_TE, logits_TE)


@pytest.mark.parametrize("router", ("token", "word", "expert"))
def test_the_hooks_are_gone_afterwards(router):
    modules = list(made(router).modules())
    hooks = sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in modules)
    with pytest.raises(KeyboardInterrupt), training_routing(made(router), 0):
        assert hooks < sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in modules)
        raise KeyboardInterrupt
    assert hooks == sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in modules)
