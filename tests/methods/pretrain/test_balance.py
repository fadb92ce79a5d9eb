"""Loss-free balancing. Broken by: a bias that an optimizer, a gradient or fine-tuning moves; a step by passes or
processes instead of the optimizer step's load; a sign; a bias that a checkpoint or the saved model loses.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from moe_lab.methods.pretrain.balance import LossFreeBalance
from moe_lab.methods.pretrain.routing import Decisions
from moe_lab.methods.pretrain.training import train, train_together
from moe_lab.methods.trained import save_model
from tests.support.families import VOCAB
from tests.support.pretrainings import training_of
from tests.support.trainings import train as finetune

ALONE = SimpleNamespace(world_size=1)


class Router(torch.nn.Module):
    def __init__(self, bias: list[float] | None):
        super().__init__()
        self.register_buffer("selection_bias", None if bias is None else torch.tensor(bias))


def decided(*experts: int) -> Decisions:
    return Decisions(torch.zeros(len(experts), 4), torch.tensor(experts)[:, None])


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
    assert model[1].selection_bias.tolist() == [-0.25, 0.75, 0.25, 0.25], (
        "even load moves nothing, earlier steps are forgotten"
    )
    assert model[2].selection_bias.tolist() == [0.0, 0.5, 0.5, 0.0]


def biases(model) -> list[torch.Tensor]:
    return [own for name, own in model.named_buffers() if name.endswith("selection_bias")]


def test_no_optimizer_has_the_bias_and_the_steps_move_it(tmp_path):
    """Three steps of 0.1: each bias is a sum of three of -0.1, 0 and 0.1, with weight decay or not."""
    trained = train(training_of(tmp_path, bias_rate=0.1, steps=3, weight_decay=0.9, routing_noise=1.0))
    assert not [name for name, _ in trained.model.named_parameters() if "bias" in name]
    held = {id(own) for group in trained.optimizer.param_groups for own in group["params"]}
    moved = biases(trained.model)
    assert len(moved) == 2 and not held & {id(bias) for bias in moved}
    for bias_E in moved:
        assert bias_E.dtype == torch.float32 and not bias_E.requires_grad
        assert bias_E.abs().max() > 0
        torch.testing.assert_close(bias_E, (bias_E * 10).round() / 10)
    assert "balance_loss" not in trained.weights, "the bias takes its place"


def unevenness(layers: list[Decisions]) -> float:
    """Standard deviation of the load, relative to its mean."""
    loads = [torch.bincount(layer.index_TK.flatten(), minlength=8).float() for layer in layers]
    return float(torch.stack([(load / load.mean()).std() for load in loads]).mean())


def test_it_moves_the_load_towards_balance(tmp_path, monkeypatch, wide):
    """The weights stay and every step has the same row, so the bias alone changes the load."""
    found: list[float] = []
    count = LossFreeBalance.count

    def record(self, layers):
        found.append(unevenness(layers))
        count(self, layers)

    monkeypatch.setattr(LossFreeBalance, "count", record)
    settings = {"steps": 16, "batch_size": 1, "sequence_length": 128, "learning_rate": 1e-20}
    train(training_of(tmp_path, count=1, bias_rate=0.01, **settings))
    assert found[0] > 0.3 and max(found[-4:]) < found[0] / 2


def test_the_saved_model_has_the_bias_in_float32(tmp_path):
    from transformers import AutoModelForCausalLM

    training = training_of(tmp_path, bias_rate=0.1, steps=1)
    model, _ = train_together(training)
    expected = [bias.clone() for bias in biases(model)]
    save_model(model, training.tokenizer, tmp_path / "model", "bfloat16")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert saved.lm_head.weight.dtype == torch.bfloat16
    for one, other in zip(biases(saved), expected, strict=True):
        assert one.dtype == torch.float32 and torch.equal(one, other) and one.abs().max() > 0


@pytest.mark.parametrize("schedule", ("none", pytest.param("router", marks=pytest.mark.slow)))
def test_fine_tuning_leaves_the_bias(schedule, tmp_path):
    """With the router frozen or not."""
    model = train(training_of(tmp_path / "first", bias_rate=0.1, steps=1)).model
    model.resize_token_embeddings(VOCAB)
    before = [bias.clone() for bias in biases(model)]
    gate = model.model.layers[0].mlp.gate.weight.detach().clone()
    finetune(model, tmp_path / "second", schedule=schedule, count=4)
    for one, other in zip(biases(model), before, strict=True):
        assert other.abs().max() > 0 and torch.equal(one, other)
    assert torch.equal(model.model.layers[0].mlp.gate.weight, gate) == (schedule == "router")
