"""Regularizers of routers, loss-free balance, and the routing that both read.

Broken by: an axis or a factor (E, K, tokens) too many, a gradient through the choice, a bias that
an optimizer, a gradient or fine-tuning moves, a step by passes or processes instead of the
optimizer step's load, a wrong sign, a bias that a checkpoint loses, regularizers that read another
choice than the experts got, hooks that stay; noise that depends on the batch or on a row's place
there, noise at temperature 0 or outside its pass, weights from noisy scores.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from moe_lab.methods.pretrain.regularizers import balance_loss, z_loss
from moe_lab.methods.pretrain.routing import RoutingNoise, TrainingRouting, training_routing
from moe_lab.methods.pretrain.trainer import LossFreeBalance
from moe_lab.methods.pretrain.training import train
from moe_lab.methods.trained import save_model
from moe_lab.models.designs.configuration import UNITS
from moe_lab.routing import Routing, routed
from moe_lab.routing.noise import gumbel
from tests.support.families import VOCAB
from tests.support.models import make_model, make_tokenizer
from tests.support.pretrainings import by_loops, training_of
from tests.support.routed_designs import LENGTH, Seen, biased_or, made
from tests.support.routed_designs import byte_rows as ids
from tests.support.tiers import by_family
from tests.support.trainings import train as finetune

SHAPES = [(1, 2, 1), (5, 7, 3), (7, 5, 2), (6, 4, 4), (64, 8, 2)]
"""Tokens, experts, experts per token: all different where an axis could be taken for another."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ("balance_loss", "z_loss"))
def test_losses_are_their_formulas(name, shape):
    """Logits of half precision are summed in float32.

    The experts are not those of the highest logits.
    """
    (tokens, experts, k), generator = shape, torch.Generator().manual_seed(shape[0])
    logits_TE = torch.randn(tokens, experts, generator=generator, dtype=torch.float64)
    index_TK = torch.stack(
        [torch.randperm(experts, generator=generator)[:k] for _ in range(tokens)]
    )
    for dtype in (torch.float32, torch.bfloat16):
        given_TE = logits_TE.to(dtype)
        found = z_loss(given_TE) if name == "z_loss" else balance_loss(given_TE, index_TK)
        assert found.dtype == torch.float32 and found.dim() == 0
        assert found.item() == pytest.approx(
            by_loops(name, given_TE.double(), index_TK).item(), rel=1e-6
        )


ALONE = SimpleNamespace(world_size=1)


class Router(torch.nn.Module):
    def __init__(self, bias: list[float] | None):
        super().__init__()
        self.register_buffer("selection_bias", None if bias is None else torch.tensor(bias))


def decided(*experts: int) -> Routing:
    return Routing(
        torch.zeros(len(experts), 4), torch.ones(len(experts), 1), torch.tensor(experts)[:, None]
    )


def test_a_step_moves_each_bias_by_the_load_of_all_its_passes():
    model = torch.nn.ModuleList([Router(None), Router([0.0, 0.5, 0.0, 0.0]), Router([0.0] * 4)])
    balance = LossFreeBalance(model, 0.25)
    balance.count([decided(0, 0, 1), decided(3)])
    balance.count([decided(0, 2), decided(3)])
    assert model[1].selection_bias.tolist() == [0.0, 0.5, 0.0, 0.0], "passes move nothing"
    balance.on_step_end(ALONE, None, None)
    # 3, 1, 1, 0 of 5 tokens; the mean is 1.25. 0, 0, 0, 2 of 2 tokens; the mean is 0.5
    assert model[1].selection_bias.tolist() == [-0.25, 0.75, 0.25, 0.25]
    assert model[2].selection_bias.tolist() == [0.25, 0.25, 0.25, -0.25]
    balance.count([decided(1, 0, 2, 3), decided(0)])
    balance.on_step_end(ALONE, None, None)
    # an even load moves nothing, and earlier steps are forgotten
    assert model[1].selection_bias.tolist() == [-0.25, 0.75, 0.25, 0.25]
    assert model[2].selection_bias.tolist() == [0.0, 0.5, 0.5, 0.0]


def biases(model) -> list[torch.Tensor]:
    return [own for name, own in model.named_buffers() if name.endswith("selection_bias")]


def test_no_optimizer_has_the_bias_the_steps_move_it_and_it_is_saved_in_float32(tmp_path):
    """After three steps of 0.1 each bias is a sum of three of -0.1, 0 and 0.1.

    Weight decay does not change it.
    """
    training = training_of(tmp_path, bias_rate=0.1, steps=3, weight_decay=0.9, routing_noise=1.0)
    trained = train(training)
    assert not [name for name, _ in trained.model.named_parameters() if "bias" in name]
    held = {id(own) for group in trained.optimizer.param_groups for own in group["params"]}
    moved = biases(trained.model)
    assert len(moved) == 2 and not held & {id(bias) for bias in moved}
    for bias_E in moved:
        assert bias_E.dtype == torch.float32 and not bias_E.requires_grad
        assert bias_E.abs().max() > 0
        torch.testing.assert_close(bias_E, (bias_E * 10).round() / 10)
    assert "balance_loss" not in trained.weights, "the bias takes its place"
    expected = [bias_E.clone() for bias_E in moved]
    save_model(trained.model, training.tokenizer, tmp_path / "model", "bfloat16")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert saved.lm_head.weight.dtype == torch.bfloat16
    for one, other in zip(biases(saved), expected, strict=True):
        assert one.dtype == torch.float32 and torch.equal(one, other)


@pytest.mark.parametrize("schedule", ("none", pytest.param("router", marks=pytest.mark.slow)))
def test_fine_tuning_leaves_the_bias(schedule, tmp_path):
    """With the router frozen or not."""
    model = train(training_of(tmp_path / "first", bias_rate=0.1, steps=1)).model
    model.resize_token_embeddings(VOCAB)
    before = [bias.clone() for bias in biases(model)]
    gate = model.model.layers[0].mlp.gate.weight.detach().clone()
    finetune(model, tmp_path / "second", schedule=schedule, count=4)
    for bias, bias_before in zip(biases(model), before, strict=True):
        assert bias_before.abs().max() > 0
        assert torch.equal(bias, bias_before)
    assert torch.equal(model.model.layers[0].mlp.gate.weight, gate) == (schedule == "router")


SEED = 3


@pytest.fixture(params=["biased", *by_family(("olmoe", "deepseek", "deepseek_v3", "gpt_oss"))])
def model(request):
    return biased_or(request.param)


@torch.no_grad()
def passed(
    model, rows: Tensor, temperature: list[float] | None
) -> tuple[Tensor, TrainingRouting, Seen]:
    """Logits of the rows with these numbers, the policy, and what came out of the routers."""
    seen, noise = Seen(), None
    if temperature is not None:
        noise = RoutingNoise(SEED, torch.zeros(8).index_copy(0, rows, torch.tensor(temperature)))
    with (
        training_routing(model, noise) as routing,
        routed(model, seen),
        routing.one_pass(rows, LENGTH),
    ):
        logits = model(ids(8)[rows], use_cache=False).logits
    return logits, routing, seen


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
    """The choice is by scores plus temperature times noise, here by a loop over tokens.

    The key of the noise is (seed, row, position, layer).
    """
    rows, temperature = [5, 2, 1], [0.5, 1.5, 0.0]
    _, _, seen = passed(model, torch.tensor(rows), temperature)
    for number, (router, own) in enumerate(zip(seen.routers, seen.routings, strict=True)):
        k, experts = own.index_TK.shape[1], own.logits_TE.shape[1]
        for batch, row in enumerate(rows):
            noise = gumbel(SEED, row, 0, 1, number, range(LENGTH), experts)
            for position in range(LENGTH):
                token = batch * LENGTH + position
                scores = router.scores(own.logits_TE[token : token + 1])
                index = router.choose(scores + temperature[batch] * noise[position], k)
                assert index[0].tolist() == own.index_TK[token].tolist()
        expected = router.weights(own.logits_TE, own.index_TK)
        torch.testing.assert_close(
            own.weights_TK, expected.to(own.weights_TK.dtype), rtol=0, atol=0
        )


def test_gradients_reach_the_router_through_the_clean_weights():
    model, noise = make_model("olmoe"), RoutingNoise(0, torch.tensor([1.0, 2.0]))
    with routed(model, noise), noise.noisy(torch.arange(2), LENGTH):
        model(ids(2), labels=ids(2), use_cache=False).loss.backward()
    for layer in model.model.layers:
        assert layer.mlp.gate.weight.grad.abs().max() > 0


def test_without_temperature_the_model_runs_as_it_is(model):
    plain = model(ids(2), use_cache=False).logits
    logits, routing, seen = passed(model, torch.arange(2), None)
    assert torch.equal(logits, plain)
    assert len(routing.layers) == len(seen.routings) > 1
    for layer, own in zip(routing.layers, seen.routings, strict=True):
        assert torch.equal(layer.logits_TE, own.logits_TE) and torch.equal(
            layer.index_TK, own.index_TK
        )


def test_a_pass_keeps_its_own_decisions_only(olmoe):
    with training_routing(olmoe, None) as routing, torch.no_grad():
        for rows in (1, 3):
            with routing.one_pass(torch.arange(rows), LENGTH):
                olmoe(ids(rows), use_cache=False)
            olmoe(ids(2), use_cache=False)
            assert [len(layer.index_TK) for layer in routing.layers] == [rows * LENGTH] * 4


@pytest.mark.parametrize("router", ("expert", *UNITS))
def test_decisions_of_routers_of_several_tokens_are_observed(router):
    """For words and sentences each token has the decision of its unit's first token.

    The model's logits do not change.
    """
    model = made(router)
    rows = torch.tensor([make_tokenizer()("ab cd. E!").input_ids] * 2)
    with torch.no_grad():
        plain = model(rows, use_cache=False, output_router_logits=True)
        with training_routing(model, None) as routing, routing.one_pass(torch.arange(2), LENGTH):
            assert torch.equal(model(rows, use_cache=False).logits, plain.logits)
    words, sentences = [0, 0, 2, 2, 2, 5, 6, 6, 8], [0, 0, 0, 0, 0, 0, 6, 6, 6]
    firsts = sentences if router == "sentence" else words
    assert len(routing.layers) == len(plain.router_logits) == 2
    for layer, logits_TE in zip(routing.layers, plain.router_logits, strict=True):
        assert torch.equal(layer.logits_TE, logits_TE)
        if router == "expert":
            continue
        if router != "word-hash":  # whose logits are 0: the word's id decides
            assert torch.equal(layer.index_TK, logits_TE.softmax(-1).topk(2).indices)
        for row in layer.index_TK.unflatten(0, (2, LENGTH)):
            assert torch.equal(row, row[firsts])
            assert len(set(map(tuple, row[sorted(set(firsts))].tolist()))) > 1


@pytest.mark.parametrize("router", ("token", "word", "expert"))
def test_the_hooks_are_gone_afterwards(router):
    def hooks() -> int:
        modules = made(router).modules()
        return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in modules)

    before = hooks()
    with pytest.raises(KeyboardInterrupt), training_routing(made(router), None):
        assert hooks() > before
        raise KeyboardInterrupt
    assert hooks() == before
