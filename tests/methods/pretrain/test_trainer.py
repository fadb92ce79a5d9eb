"""The objective of a pre-training, its log and its held-out loss.

Broken by: a coefficient that is scaled by layers, passes, experts or not at all; transformers' own auxiliary loss on top;
a logged loss with regularizers in it; a noise schedule that ends elsewhere; held-out rows in other passes or with noise.
"""

import json
import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from moe_lab.errors import TrainingError
from moe_lab.methods.pretrain import trainer as trainer_module
from moe_lab.methods.pretrain import training as training_module
from moe_lab.methods.pretrain.packing import PackedRows
from moe_lab.methods.pretrain.routing import TrainingRouting
from moe_lab.methods.pretrain.trainer import PretrainTrainer, losses_of
from moe_lab.methods.pretrain.training import PretrainingInputs, train, train_together
from moe_lab.methods.trained import last_checkpoint
from moe_lab.models.designs.configuration import UNITS
from moe_lab.models.designs.units import unit_tables
from tests.support.pretrainings import by_loops, training_of
from tests.support.trainings import assert_same

STILL = {"learning_rate": 1e-20}
"""Weights stay: every step's loss is that of the first weights."""
HEAVY = {"aux_loss": 0.7, "z_loss": 0.03, "device_loss": 0.4, "devices": 2}
DESIGNS = {
    "olmoe": {},
    "deepseek": {"backbone": "deepseek", "layers": 3},
    "shared": {"backbone": "deepseek", "experts": 6, "experts_per_token": 3, "shared_experts": 1},
    "word": {"router": "word", "experts_per_token": 3, "shared_experts": 1},
    "expert": {"router": "expert", "aux_loss": 0.0, "device_loss": 0.0},
}


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Weights at which routers and losses differ clearly, and load is uneven."""
    from_config = AutoModelForCausalLM.from_config

    def wider(*args, **options):
        model = from_config(*args, **options)
        with torch.no_grad():
            for own in model.parameters():
                if own.dim() > 1:
                    own *= 12
        return model

    monkeypatch.setattr(AutoModelForCausalLM, "from_config", wider)


@pytest.fixture
def steps(monkeypatch):
    """(model before the step, its gradients) of every optimizer step; gradients are not clipped."""
    found = []

    def record(self, model):
        gradients = {name: own.grad.clone() for name, own in self.model.named_parameters()}
        found.append((deepcopy(self.model.state_dict()), gradients))
        self.losses.clear()
        return torch.tensor(1.0)

    monkeypatch.setattr(PretrainTrainer, "_clip_grad_norm", record)
    return found


def passes(training: PretrainingInputs, step: int) -> list[Tensor]:
    """int64 [rows, length]: the rows of each pass of a step."""
    design = training.design
    packed = PackedRows(training.rows, seed=training.config.seed, count=design.rows)
    first = step * design.batch_size * design.gradient_accumulation
    numbers = np.arange(first, first + design.batch_size * design.gradient_accumulation)
    return [
        torch.stack([packed[int(number)]["input_ids"] for number in part])
        for part in numbers.reshape(design.gradient_accumulation, -1)
    ]


def parts_of(model, ids: Tensor, design) -> dict[str, Tensor]:
    """Cross-entropy and regularizers [layers] of a pass, by loops."""
    outputs = model(ids, output_router_logits=True)
    log_probs = outputs.logits[:, :-1].log_softmax(-1)
    losses = [
        -log_probs[row, position, token]
        for row in range(len(ids))
        for position, token in enumerate(ids[row, 1:].tolist())
    ]
    found = {"loss": sum(losses) / len(losses)}
    routed = [
        (logits, logits.topk(design.experts_per_token).indices) for logits in outputs.router_logits
    ]
    for name in ("balance_loss", "z_loss", "device_loss"):
        found[name] = torch.stack([by_loops(name, *each, design.devices) for each in routed])
    return found


def reference(
    training: PretrainingInputs, weights: dict[str, Tensor], scale: dict[str, float]
) -> dict[str, Tensor]:
    """Gradients of the formula of step 0 at these weights, with a factor on some coefficients."""
    design, model = training.design, train_free_model(training)
    model.load_state_dict(weights)
    coefficients = {"loss": 1.0, "balance_loss": design.aux_loss, "z_loss": design.z_loss}
    coefficients["device_loss"] = design.device_loss
    total = 0
    for ids in passes(training, 0):
        for name, value in parts_of(model, ids, design).items():
            weight = coefficients[name] * scale.get(name, 1.0)
            total = total + weight * value.mean() / design.gradient_accumulation
    total.backward()
    return {name: own.grad for name, own in model.named_parameters()}


def train_free_model(training: PretrainingInputs):
    config = training_module.architecture(training.design, training.tokenizer)
    model = training_module.AutoModelForCausalLM.from_config(config)
    if training.design.router != "expert":
        model.set_experts_implementation("eager")
    if training.design.router in UNITS:
        model.set_units(unit_tables(training.tokenizer, training.design.router))
    model.router_aux_loss_coef = 0.0  # `parts_of` asks for router logits
    return model.train()


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max((one[name] - other[name]).abs().max().item() for name in one)


@pytest.mark.parametrize(
    "name, accumulation", [("olmoe", 2), ("deepseek", 2), ("shared", 1), ("word", 2), ("expert", 2)]
)
def test_a_steps_gradient_is_that_of_the_formula(name, accumulation, tmp_path, steps):
    """Cross-entropy per token; of each regularizer the mean over passes and MoE layers times its coefficient.

    A coefficient that is twice as large changes the gradient by 100 times what rounding does.
    """
    settings = HEAVY | DESIGNS[name] | {"steps": 1, "gradient_accumulation": accumulation}
    training = training_of(tmp_path, **settings)
    train(training)
    [(weights, gradients)] = steps
    assert distance(gradients, reference(training, weights, {})) < 3e-6
    balanced = () if name == "expert" else ("balance_loss", "device_loss")
    for wrong in ("loss", "z_loss", *balanced):
        assert distance(gradients, reference(training, weights, {wrong: 2.0})) > 3e-4, wrong


def lines(training: PretrainingInputs, key: str) -> list[dict]:
    found = [json.loads(line) for line in (training.folder / "log.jsonl").read_text().splitlines()]
    return [line for line in found if key in line]


@pytest.mark.parametrize("name", ("olmoe", "shared", "word"))
def test_the_log_has_cross_entropy_alone_and_each_regularizer_by_layer(name, tmp_path):
    """Means over the steps of a line and their passes."""
    settings = HEAVY | DESIGNS[name] | STILL | {"gradient_accumulation": 2, "save_steps": 2}
    training = training_of(tmp_path, **settings)
    model = train(training).model.train()
    first, second = lines(training, "loss")
    for line, numbers in ((first, (0, 1)), (second, (2, 3))):
        read = [ids for step in numbers for ids in passes(training, step)]
        with torch.no_grad():
            parts = [parts_of(model, ids, training.design) for ids in read]
        assert line["loss"] == pytest.approx(
            sum(part["loss"].item() for part in parts) / 4, abs=1e-5
        )
        for key in ("balance_loss", "z_loss", "device_loss"):
            expected = torch.stack([part[key] for part in parts]).mean(0)
            assert line[key] == pytest.approx(expected.tolist(), rel=1e-5)
            assert len(line[key]) == (
                training.design.layers - (training.design.backbone == "deepseek")
            )
    assert [line["step"] for line in lines(training, "validation_loss")] == [2, 4]


@pytest.mark.parametrize("router", ("token", "expert"))
def test_transformers_computes_no_auxiliary_loss(router, tmp_path, monkeypatch):
    """Its one-hot choices of all layers take several times the memory of the router logits."""

    def fail(*args, **options):
        raise AssertionError("the auxiliary loss of transformers")

    monkeypatch.setattr("transformers.models.olmoe.modeling_olmoe.load_balancing_loss_func", fail)
    training = training_of(tmp_path, router=router, steps=1)
    assert set(train(training).weights) == (
        {"balance_loss", "z_loss"} if router == "token" else {"z_loss"}
    )
    assert len(lines(training, "loss")[0]["z_loss"]) == 2


def test_without_regularizers_nothing_of_them_is_logged(tmp_path):
    for backbone, settings in (
        ("olmoe", {"aux_loss": 0.0, "z_loss": 0.0}),
        ("dense", HEAVY | {"experts": 3}),
    ):
        training = training_of(tmp_path / backbone, backbone=backbone, **settings, **STILL)
        trained = train(training)
        assert trained.weights == {}
        [line] = lines(training, "loss")
        assert not {"balance_loss", "z_loss", "device_loss"} & line.keys()
        with torch.no_grad():
            every = torch.cat([ids for step in range(4) for ids in passes(training, step)])
            assert line["loss"] == pytest.approx(
                losses_of(trained.model, every).mean().item(), abs=1e-5
            )


def test_a_regularizer_counts_even_with_noise_by_the_noisy_choice(tmp_path, monkeypatch):
    """The experts that the tokens got, and not those of the highest logits."""
    seen = []
    compute = PretrainTrainer._regularizers

    def record(self):
        found = compute(self)
        seen.append((self.routing.layers[0], found["balance_loss"][0].item()))
        return found

    monkeypatch.setattr(PretrainTrainer, "_regularizers", record)
    train(training_of(tmp_path, routing_noise=5.0, steps=2))
    changed = 0
    for layer, value in seen:
        chosen, tokens = layer.index_TK.flatten().tolist(), len(layer.index_TK)
        p = layer.logits_TE.softmax(-1).mean(0)
        expected = sum(chosen.count(expert) / tokens * p[expert] for expert in range(len(p)))
        assert value == pytest.approx(expected.item(), rel=1e-5)
        changed += chosen != layer.logits_TE.topk(2).indices.flatten().tolist()
    assert changed == len(seen) == 2


def test_each_row_has_its_temperature(tmp_path, monkeypatch):
    begun, one_pass = [], TrainingRouting.one_pass

    def record(self, row_B, length):
        begun.append((row_B.tolist(), length, self.noise.temperatures[row_B].tolist()))
        return one_pass(self, row_B, length)

    monkeypatch.setattr(TrainingRouting, "one_pass", record)
    train(training_of(tmp_path, seed=3, routing_noise=2.0, gradient_accumulation=2))
    drawn = (2.0 * np.random.default_rng([3, 16]).random(16, dtype=np.float32)).tolist()
    assert [rows for rows, *_ in begun] == [[2 * i, 2 * i + 1] for i in range(8)]
    for rows, length, temperature in begun:
        assert length == 12 and temperature == pytest.approx([drawn[row] for row in rows])


def test_held_out_losses_are_those_of_single_rows_without_noise(tmp_path):
    """3 rows in passes of 2: the last pass is half empty."""
    training = training_of(tmp_path, routing_noise=9.0, **STILL)
    model, told = train_together(training)
    expected = []
    with torch.no_grad():
        for row in torch.from_numpy(training.held_out).long():
            log_probs = model.eval()(row[None]).logits[0].log_softmax(-1)
            expected.append(
                -sum(log_probs[i, token].item() for i, token in enumerate(row[1:])) / 11
            )
    validation = told["validation"]
    assert validation["row_losses"] == pytest.approx(expected, abs=1e-5) and validation["rows"] == 3
    assert validation["loss"] == pytest.approx(sum(expected) / 3, abs=1e-5)
    assert validation["ci95"][0] <= validation["loss"] <= validation["ci95"][1]
    assert lines(training, "validation_loss")[-1]["validation_loss"] == pytest.approx(
        validation["loss"]
    )


@pytest.mark.slow
def test_evaluating_more_often_changes_no_weight(tmp_path):
    settings = {"routing_noise": 1.0, "steps": 3}
    assert_same(
        *(
            train(training_of(tmp_path / str(every), save_steps=every, **settings)).model
            for every in (1, 9)
        )
    )


@pytest.mark.parametrize("what", ("z_loss", "losses_of"))
def test_a_loss_that_is_no_number_stops_with_the_last_checkpoint(what, tmp_path, monkeypatch):
    """In step 3: in a regularizer, or in the held-out loss at its end."""
    function = getattr(trainer_module, what)
    calls = []

    def poisoned(*args):
        calls.append(1)
        # two layers a step; two passes of held-out rows at each checkpoint
        return function(*args) * (math.nan if len(calls) > 4 else 1)

    monkeypatch.setattr(trainer_module, what, poisoned)
    training = training_of(tmp_path, save_steps=1)
    name = "loss" if what == "z_loss" else "validation loss"
    told = f"The {name} of training step 3 is nan. The last checkpoint is kept."
    with pytest.raises(TrainingError, match=told):
        train(training)
    assert last_checkpoint(tmp_path / "checkpoints").name == "checkpoint-2"
    assert "NaN" not in (tmp_path / "log.jsonl").read_text()
