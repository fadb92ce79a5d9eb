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
    tokens, experts, top_k = shape
    generator = torch.Generator().manual_seed(tokens)
    exact_TE = torch.randn(tokens, experts, generator=generator, dtype=torch.float64)
    permutations = [torch.randperm(experts, generator=generator) for _ in range(tokens)]
    index_TK = torch.stack(permutations)[:, :top_k]
    for dtype in (torch.float32, torch.bfloat16):
        logits_TE = exact_TE.to(dtype)
        if name == "z_loss":
            loss = z_loss(logits_TE)
        else:
            loss = balance_loss(logits_TE, index_TK)
        expected = by_loops(name, logits_TE.double(), index_TK).item()
        assert loss.dtype == torch.float32
        assert loss.dim() == 0
        assert loss.item() == pytest.approx(expected, rel=1e-6)


ALONE = SimpleNamespace(world_size=1)


class Router(torch.nn.Module):
    """A router without a selection bias, or with this one."""

    def __init__(self, bias: list[float] | None):
        super().__init__()
        buffer = None if bias is None else torch.tensor(bias)
        self.register_buffer("selection_bias", buffer)


def decided(*experts: int) -> Routing:
    """One of four experts for each token."""
    tokens = len(experts)
    return Routing(
        logits_TE=torch.zeros(tokens, 4),
        weights_TK=torch.ones(tokens, 1),
        index_TK=torch.tensor(experts)[:, None],
    )


def test_a_step_moves_each_bias_by_the_load_of_all_its_passes():
    without_bias = Router(None)
    first = Router([0.0, 0.5, 0.0, 0.0])
    second = Router([0.0, 0.0, 0.0, 0.0])
    balance = LossFreeBalance(torch.nn.ModuleList([without_bias, first, second]), 0.25)
    balance.count([decided(0, 0, 1), decided(3)])
    balance.count([decided(0, 2), decided(3)])
    assert first.selection_bias.tolist() == [0.0, 0.5, 0.0, 0.0], "passes move nothing"
    balance.on_step_end(ALONE, None, None)
    # 3, 1, 1, 0 of 5 tokens; the mean is 1.25. 0, 0, 0, 2 of 2 tokens; the mean is 0.5
    assert first.selection_bias.tolist() == [-0.25, 0.75, 0.25, 0.25]
    assert second.selection_bias.tolist() == [0.25, 0.25, 0.25, -0.25]
    balance.count([decided(1, 0, 2, 3), decided(0)])
    balance.on_step_end(ALONE, None, None)
    # an even load moves nothing, and earlier steps are forgotten
    assert first.selection_bias.tolist() == [-0.25, 0.75, 0.25, 0.25]
    assert second.selection_bias.tolist() == [0.0, 0.5, 0.5, 0.0]


def biases(model) -> list[torch.Tensor]:
    return [buffer for name, buffer in model.named_buffers() if name.endswith("selection_bias")]


def test_no_optimizer_has_the_bias_the_steps_move_it_and_it_is_saved_in_float32(tmp_path):
    """After three steps of 0.1 each bias is a sum of three of -0.1, 0 and 0.1.

    Weight decay does not change it.
    """
    training = training_of(tmp_path, bias_rate=0.1, steps=3, weight_decay=0.9, routing_noise=1.0)
    trained = train(training)
    assert [name for name, _ in trained.model.named_parameters() if "bias" in name] == []
    optimized = set()
    for group in trained.optimizer.param_groups:
        optimized.update(id(parameter) for parameter in group["params"])
    trained_biases = biases(trained.model)
    assert len(trained_biases) == 2
    for bias_E in trained_biases:
        assert id(bias_E) not in optimized
        assert bias_E.dtype == torch.float32
        assert not bias_E.requires_grad
        assert bias_E.abs().max() > 0
        torch.testing.assert_close(bias_E, (bias_E * 10).round() / 10)
    assert "balance_loss" not in trained.weights, "the bias takes its place"

    expected_biases = [bias_E.clone() for bias_E in trained_biases]
    save_model(trained.model, training.tokenizer, tmp_path / "model", "bfloat16")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert saved.lm_head.weight.dtype == torch.bfloat16
    for saved_E, expected_E in zip(biases(saved), expected_biases, strict=True):
        assert saved_E.dtype == torch.float32
        assert torch.equal(saved_E, expected_E)


@pytest.mark.parametrize("schedule", ("none", pytest.param("router", marks=pytest.mark.slow)))
def test_fine_tuning_leaves_the_bias(schedule, tmp_path):
    """With the router frozen or not."""
    model = train(training_of(tmp_path / "first", bias_rate=0.1, steps=1)).model
    model.resize_token_embeddings(VOCAB)
    biases_before = [bias.clone() for bias in biases(model)]
    gate = model.model.layers[0].mlp.gate.weight
    gate_before = gate.detach().clone()
    finetune(model, tmp_path / "second", schedule=schedule, count=4)
    for bias, bias_before in zip(biases(model), biases_before, strict=True):
        assert bias_before.abs().max() > 0
        assert torch.equal(bias, bias_before)
    gate_after = model.model.layers[0].mlp.gate.weight
    is_frozen = schedule == "router"
    assert torch.equal(gate_after, gate_before) == is_frozen


SEED = 3


@pytest.fixture(params=["biased", *by_family(("olmoe", "deepseek", "deepseek_v3", "gpt_oss"))])
def model(request):
    return biased_or(request.param)


@torch.no_grad()
def passed(
    model, rows: Tensor, temperature: list[float] | None
) -> tuple[Tensor, TrainingRouting, Seen]:
    """Logits of the rows with these numbers, the policy, and what came out of the routers."""
    noise = None
    if temperature is not None:
        of_all_rows = torch.zeros(8).index_copy(0, rows, torch.tensor(temperature))
        noise = RoutingNoise(SEED, of_all_rows)
    seen = Seen()
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
    assert torch.equal(after, plain)
    assert not torch.equal(noisy, plain)


def test_the_choice_is_that_of_the_formula_and_the_weights_are_clean(model):
    """The choice is by scores plus temperature times noise, here by a loop over tokens.

    The key of the noise is (seed, row, position, layer).
    """
    rows = [5, 2, 1]
    temperatures = [0.5, 1.5, 0.0]
    _, _, seen = passed(model, torch.tensor(rows), temperatures)
    for layer, (router, routing) in enumerate(zip(seen.routers, seen.routings, strict=True)):
        top_k = routing.index_TK.shape[1]
        experts = routing.logits_TE.shape[1]
        for place, row in enumerate(rows):
            noise = gumbel(SEED, row, 0, 1, layer, range(LENGTH), experts)
            for position in range(LENGTH):
                token = place * LENGTH + position
                scores = router.scores(routing.logits_TE[token : token + 1])
                noisy_scores = scores + temperatures[place] * noise[position]
                expected_index = router.choose(noisy_scores, top_k)
                assert routing.index_TK[token].tolist() == expected_index[0].tolist()
        clean_weights_TK = router.weights(routing.logits_TE, routing.index_TK)
        assert torch.equal(routing.weights_TK, clean_weights_TK.to(routing.weights_TK.dtype))


def test_gradients_reach_the_router_through_the_clean_weights():
    model = make_model("olmoe")
    noise = RoutingNoise(0, torch.tensor([1.0, 2.0]))
    with routed(model, noise), noise.noisy(torch.arange(2), LENGTH):
        model(ids(2), labels=ids(2), use_cache=False).loss.backward()
    for layer in model.model.layers:
        assert layer.mlp.gate.weight.grad.abs().max() > 0


def test_without_temperature_the_model_runs_as_it_is(model):
    plain = model(ids(2), use_cache=False).logits
    logits, routing, seen = passed(model, torch.arange(2), None)
    assert torch.equal(logits, plain)
    assert len(seen.routings) > 1
    for kept, observed in zip(routing.layers, seen.routings, strict=True):
        assert torch.equal(kept.logits_TE, observed.logits_TE)
        assert torch.equal(kept.index_TK, observed.index_TK)


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
    firsts = [0, 0, 2, 2, 2, 5, 6, 6, 8]
    if router == "sentence":
        firsts = [0, 0, 0, 0, 0, 0, 6, 6, 6]
    assert len(plain.router_logits) == 2
    for layer, logits_TE in zip(routing.layers, plain.router_logits, strict=True):
        assert torch.equal(layer.logits_TE, logits_TE)
        if router == "expert":
            continue
        if router != "word-hash":  # its logits are 0: the word's id decides
            assert torch.equal(layer.index_TK, logits_TE.softmax(-1).topk(2).indices)
        for index_LK in layer.index_TK.unflatten(0, (2, LENGTH)):
            assert torch.equal(index_LK, index_LK[firsts])
            decisions = {tuple(index_LK[first].tolist()) for first in firsts}
            assert len(decisions) > 1


@pytest.mark.parametrize("router", ("token", "word", "expert"))
def test_the_hooks_are_gone_afterwards(router):
    def hooks() -> int:
        count = 0
        for module in made(router).modules():
            count += len(module._forward_hooks)
            count += len(module._forward_pre_hooks)
        return count

    before = hooks()
    with pytest.raises(KeyboardInterrupt), training_routing(made(router), None):
        assert hooks() > before
        raise KeyboardInterrupt
    assert hooks() == before
