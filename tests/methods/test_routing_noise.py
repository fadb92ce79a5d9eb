"""Noise in training. Broken by: noise that depends on the batch, on its place there or on what ran before; noise at
temperature 0 or outside its pass; weights from noisy scores; a temperature of another sequence or step.
"""

import pytest
import torch
from torch import Tensor

from moe_lab.methods.trainer import RoutingNoise
from moe_lab.routing.hook import routed
from moe_lab.routing.noise import gumbel
from tests.support.models import make_model
from tests.support.routed_designs import LENGTH, Seen, biased_or
from tests.support.routed_designs import byte_rows as ids
from tests.support.tiers import by_family


@pytest.fixture(params=["biased", *by_family(("olmoe", "deepseek", "deepseek_v3", "gpt_oss"))])
def model(request):
    return biased_or(request.param)


@torch.no_grad()
def passed(model, rows: list[int], temperature: list[float], seed: int = 3) -> tuple[Tensor, Seen]:
    """Logits of the rows (`rows` are their numbers), and what came out of the routers."""
    numbers, temperatures = torch.tensor(rows), torch.zeros(8)
    temperatures[numbers] = torch.tensor(temperature)
    noise, seen = RoutingNoise(seed, temperatures), Seen()
    with routed(model, noise), routed(model, seen), noise.noisy(numbers, LENGTH):
        logits = model(ids(8)[numbers], use_cache=False).logits
    return logits, seen


def first_choices(model, *args, **options) -> Tensor:
    """[rows, LENGTH, K]: the experts that the first router chose."""
    return passed(model, *args, **options)[1].routings[0].index_TK.unflatten(0, (-1, LENGTH))


def test_temperature_0_is_no_noise_bit_for_bit(model):
    with torch.no_grad():
        plain = model(ids(8)[:3], use_cache=False).logits
    assert torch.equal(passed(model, [0, 1, 2], [0.0, 0.0, 0.0])[0], plain)


def test_outside_its_pass_there_is_none_even_after_an_error(olmoe):
    noise = RoutingNoise(0, torch.tensor([5.0]))
    with routed(olmoe, noise), torch.no_grad():
        with pytest.raises(KeyboardInterrupt), noise.noisy(torch.arange(1), LENGTH):
            noisy = olmoe(ids(1), use_cache=False).logits
            raise KeyboardInterrupt
        after = olmoe(ids(1), use_cache=False).logits
    with torch.no_grad():
        plain = olmoe(ids(1), use_cache=False).logits
    assert torch.equal(after, plain) and not torch.equal(noisy, plain)


def test_the_choice_is_that_of_the_formula_and_the_weights_are_clean(model):
    """Scores plus temperature times keyed noise of (seed, row, position, layer), by a loop over tokens."""
    rows, temperature = [5, 2, 1], [0.5, 1.5, 0.0]
    _, seen = passed(model, rows, temperature, seed=7)
    for number, (router, own) in enumerate(zip(seen.routers, seen.routings, strict=True)):
        k, experts = own.index_TK.shape[1], own.logits_TE.shape[1]
        for batch, row in enumerate(rows):
            noise = gumbel(7, row, 0, 1, number, range(LENGTH), experts)
            for position in range(LENGTH):
                token = batch * LENGTH + position
                scores = router.scores(own.logits_TE[token : token + 1])
                index = router.choose(scores + temperature[batch] * noise[position], k)
                assert index[0].tolist() == own.index_TK[token].tolist()
        expected = router.weights(own.logits_TE, own.index_TK)
        torch.testing.assert_close(own.weights_TK, expected.to(own.weights_TK.dtype), rtol=0, atol=0)


def test_noise_is_that_of_the_row_wherever_it_is(olmoe):
    """Among others, alone, again after another pass; of another seed or row it is another."""
    together, alone = first_choices(olmoe, [4, 6], [2.0, 3.0]), first_choices(olmoe, [6], [3.0])
    assert torch.equal(together[1], alone[0])
    assert torch.equal(first_choices(olmoe, [6, 4], [3.0, 2.0]).flip(0), together)
    assert not torch.equal(first_choices(olmoe, [6], [3.0], seed=4), alone)


def test_gradients_reach_the_router_through_the_clean_weights():
    model, noise = make_model("olmoe"), RoutingNoise(0, torch.tensor([1.0, 2.0]))
    with routed(model, noise), noise.noisy(torch.arange(2), LENGTH):
        model(ids(2), labels=ids(2), use_cache=False).loss.backward()
    for layer in model.model.layers:
        assert layer.mlp.gate.weight.grad.abs().max() > 0


def drawn(seed: int, highest: float, schedule: str = "constant", step: int = 0) -> Tensor:
    noise = RoutingNoise.of(seed, highest, schedule, steps=4, sequences=4000)
    assert noise is not None
    return noise.temperatures(torch.arange(4000), step)


def test_temperatures_are_uniform_and_of_the_seed():
    """Of 4000 rows: the mean is within 0.04 of 1, but for odds of 1 in 10^5."""
    own = drawn(5, 2.0)
    assert own.dtype == torch.float32 and 0 <= own.min() < 0.01 and 1.99 < own.max() <= 2.0
    assert own.mean().item() == pytest.approx(1.0, abs=0.04)
    assert torch.equal(own, drawn(5, 2.0)) and torch.equal(own, 2 * drawn(5, 1.0))
    assert not torch.equal(own, drawn(6, 2.0))
