"""Routers in training. Broken by: noise that depends on the batch, on its place there or on what ran before; noise in a
row of temperature 0; weights from noisy scores; regularizers that read another choice than the experts got.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from moe_lab.methods.pretrain.design import architecture
from moe_lab.methods.pretrain.routing import TrainingRouting, temperatures, training_routing
from moe_lab.models.designs.configuration import UNITS
from moe_lab.models.designs.units import unit_tables
from moe_lab.routing.hook import Router, Routing, routed
from moe_lab.routing.noise import gumbel
from tests.support.models import make_model, make_tokenizer, small_model
from tests.support.pretrainings import design
from tests.support.tiers import by_family

LENGTH = 9


@pytest.fixture(params=["biased", *by_family(("olmoe", "deepseek", "deepseek_v3", "gpt_oss"))])
def model(request):
    """`biased`: a design with a selection bias that is not zero."""
    return made("token", bias_rate=0.1) if request.param == "biased" else small_model(request.param)


@cache
def made(router: str, **settings: Any) -> Any:
    """A design with random weights, wide enough that routers differ clearly."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    config = architecture(design(router=router, **settings), 257, tokenizer)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, own in [*model.named_parameters(), *model.named_buffers()]:
            if "bias" in name or (own.dim() > 1 and own.is_floating_point()):
                own.normal_(0, 0.2)
    if router in UNITS:
        model.set_units(unit_tables(tokenizer, router))
    return model


def ids(rows: int) -> Tensor:
    return torch.randint(0, 256, (rows, LENGTH), generator=torch.Generator().manual_seed(1))


class Seen:
    """A policy inside the training's one: what the routers decided after it."""

    def __init__(self) -> None:
        self.routers: list[Router] = []
        self.routings: list[Routing] = []

    def __call__(self, router: Router, routing: Routing) -> None:
        self.routers.append(router)
        self.routings.append(routing)


@torch.no_grad()
def passed(
    model, rows: Tensor, temperature: list[float] | None, seed: int = 3
) -> tuple[Tensor, TrainingRouting, Seen]:
    """Logits of the rows (`rows` are their numbers), the policy, and what came out of the routers."""
    seen = Seen()
    with training_routing(model, seed) as routing, routed(model, seen):
        routing.begin(rows, LENGTH, None if temperature is None else torch.tensor(temperature))
        logits = model(ids(8)[rows], use_cache=False).logits
    return logits, routing, seen


def test_without_temperature_the_model_runs_as_it_is(model):
    plain = model(ids(2), use_cache=False).logits
    logits, routing, seen = passed(model, torch.arange(2), None)
    assert torch.equal(logits, plain)
    assert len(routing.layers) == len(seen.routings) > 1
    for layer, own in zip(routing.layers, seen.routings, strict=True):
        assert torch.equal(layer.logits_TE, own.logits_TE) and torch.equal(layer.index_TK, own.index_TK)


def test_temperature_0_is_no_noise_bit_for_bit(model):
    plain, *_ = passed(model, torch.arange(3), None)
    zero, *_ = passed(model, torch.arange(3), [0.0, 0.0, 0.0])
    assert torch.equal(zero, plain)


def test_rows_with_and_without_noise_share_a_batch(model):
    clean, noisy = passed(model, torch.arange(3), None)[1], passed(model, torch.arange(3), [0.0, 4.0, 0.0])[1]
    one, other = (each.layers[0].index_TK.unflatten(0, (3, LENGTH)) for each in (clean, noisy))
    assert torch.equal(one[0], other[0]) and torch.equal(one[2], other[2])
    assert (one[1] != other[1]).any(-1).float().mean() > 0.2, "of 9 tokens at temperature 4"


def test_the_choice_is_that_of_the_formula_and_the_weights_are_clean(model):
    """Scores plus temperature times keyed noise of (seed, row, position, layer), by a loop over tokens."""
    rows, temperature = torch.tensor([5, 2]), [0.5, 1.5]
    _, routing, seen = passed(model, rows, temperature, seed=7)
    for number, (router, own) in enumerate(zip(seen.routers, seen.routings, strict=True)):
        k, experts = own.index_TK.shape[1], own.logits_TE.shape[1]
        for batch, row in enumerate(rows.tolist()):
            noise = gumbel(7, row, 0, 1, number, range(LENGTH), experts)
            for position in range(LENGTH):
                token = batch * LENGTH + position
                scores = router.scores(own.logits_TE[token : token + 1])
                index = router.choose(scores + temperature[batch] * noise[position], k)
                assert index[0].tolist() == own.index_TK[token].tolist()
                assert index[0].tolist() == routing.layers[number].index_TK[token].tolist()
        expected = router.weights(own.logits_TE, own.index_TK)
        torch.testing.assert_close(own.weights_TK, expected.to(own.weights_TK.dtype), rtol=0, atol=0)


def test_noise_is_that_of_the_row_wherever_it_is(olmoe):
    """Among others, alone, again after another pass; of another seed or row it is another."""
    together = passed(olmoe, torch.tensor([4, 6]), [2.0, 3.0])[1].layers[0].index_TK.unflatten(0, (2, LENGTH))
    alone = passed(olmoe, torch.tensor([6]), [3.0])[1].layers[0].index_TK
    assert torch.equal(together[1], alone)
    turned = passed(olmoe, torch.tensor([6, 4]), [3.0, 2.0])[1].layers[0].index_TK.unflatten(0, (2, LENGTH))
    assert torch.equal(turned.flip(0), together)
    assert not torch.equal(passed(olmoe, torch.tensor([6]), [3.0], seed=4)[1].layers[0].index_TK, alone)


def test_gradients_reach_the_router_through_the_clean_weights():
    model = make_model("olmoe")
    with training_routing(model, 0) as routing:
        routing.begin(torch.arange(2), LENGTH, torch.tensor([1.0, 2.0]))
        model(ids(2), labels=ids(2), use_cache=False).loss.backward()
        assert all(layer.logits_TE.requires_grad for layer in routing.layers)
    for layer in model.model.layers:
        assert layer.mlp.gate.weight.grad.abs().max() > 0


def test_a_pass_keeps_its_own_decisions_only(olmoe):
    with training_routing(olmoe, 0) as routing, torch.no_grad():
        for rows in (1, 3):
            routing.begin(torch.arange(rows), LENGTH, None)
            olmoe(ids(rows), use_cache=False)
            assert [len(layer.index_TK) for layer in routing.layers] == [rows * LENGTH] * 4


def test_a_dense_model_runs_without_decisions():
    dense = make_model("llama")
    with training_routing(dense, 0) as routing, torch.no_grad():
        routing.begin(torch.arange(2), LENGTH, torch.tensor([1.0, 1.0]))
        dense(ids(2))
    assert routing.layers == []


@pytest.mark.parametrize("router", UNITS)
def test_decisions_of_words_and_sentences_are_observed(router):
    """Of each token that of its unit's first one; the model runs as it is."""
    model = made(router)
    rows = torch.tensor([make_tokenizer()("ab cd. E!").input_ids] * 2)
    with torch.no_grad():
        plain = model(rows, use_cache=False, output_router_logits=True)
        with training_routing(model, 0) as routing:
            routing.begin(torch.arange(2), LENGTH, None)
            assert torch.equal(model(rows, use_cache=False).logits, plain.logits)
    firsts = {"word": [0, 0, 2, 2, 2, 5, 6, 6, 8], "sentence": [0, 0, 0, 0, 0, 0, 6, 6, 6]}[router]
    assert len(routing.layers) == len(plain.router_logits) == 2
    for layer, logits_TE in zip(routing.layers, plain.router_logits, strict=True):
        assert torch.equal(layer.logits_TE, logits_TE)
        assert torch.equal(layer.index_TK, logits_TE.softmax(-1).topk(2).indices)
        for row in layer.index_TK.unflatten(0, (2, LENGTH)):
            assert torch.equal(row, row[firsts])
            assert len(set(map(tuple, row[sorted(set(firsts))].tolist()))) > 1


def test_expert_choice_decides_nothing_of_a_token():
    model = made("expert")
    with training_routing(model, 0) as routing, torch.no_grad():
        routing.begin(torch.arange(2), LENGTH, None)
        model(ids(2))
    assert routing.layers == []


@pytest.mark.parametrize("router", ("token", "word"))
def test_the_hooks_are_gone_afterwards(router):
    modules = list(made(router).modules())
    hooks = sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in modules)
    with pytest.raises(KeyboardInterrupt), training_routing(made(router), 0):
        assert hooks < sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in modules)
        raise KeyboardInterrupt
    assert hooks == sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in modules)


def test_temperatures_are_uniform_and_of_the_seed():
    """Of 4000 rows: the mean is within 0.04 of 1, but for odds of 1 in 10^5."""
    drawn = temperatures(5, 4000, 2.0)
    assert drawn.dtype == torch.float32 and 0 <= drawn.min() < 0.01 and 1.99 < drawn.max() <= 2.0
    assert drawn.mean().item() == pytest.approx(1.0, abs=0.04)
    assert torch.equal(drawn, temperatures(5, 4000, 2.0)) and torch.equal(
        drawn, 2 * temperatures(5, 4000, 1.0)
    )
    assert not torch.equal(drawn, temperatures(6, 4000, 2.0))
