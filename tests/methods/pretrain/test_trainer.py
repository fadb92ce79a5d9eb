"""The objective of a pre-training, its log and its held-out loss.

Broken by: a coefficient that is scaled by layers, passes, experts or not at all; transformers' own
auxiliary loss on top; a logged loss with regularizers in it; a noise schedule that ends elsewhere;
held-out rows in other passes or with noise.
"""

import json
import math
from copy import deepcopy
from typing import NamedTuple

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
REGULARIZERS = ("balance_loss", "z_loss", "device_loss")
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

    def from_config_with_wide_weights(*args, **options):
        model = from_config(*args, **options)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter *= 12
        return model

    monkeypatch.setattr(AutoModelForCausalLM, "from_config", from_config_with_wide_weights)


class Step(NamedTuple):
    weights: dict[str, Tensor]
    """Before the step."""
    gradients: dict[str, Tensor]


@pytest.fixture
def steps(monkeypatch) -> list[Step]:
    """Every optimizer step; gradients are not clipped."""
    steps = []

    def record(self, model):
        gradients = {}
        for name, parameter in self.model.named_parameters():
            gradients[name] = parameter.grad.clone()
        steps.append(Step(deepcopy(self.model.state_dict()), gradients))
        return torch.tensor(1.0)

    monkeypatch.setattr(PretrainTrainer, "_clip_grad_norm", record)
    return steps


def passes(training: PretrainingInputs, step: int) -> list[Tensor]:
    """int64 [rows, length]: the rows of each pass of a step."""
    design = training.design
    packed = PackedRows(training.rows, seed=training.config.seed, count=design.rows)
    first_pass = step * design.gradient_accumulation
    all_ids = []
    for number in range(first_pass, first_pass + design.gradient_accumulation):
        rows = range(number * design.batch_size, (number + 1) * design.batch_size)
        all_ids.append(torch.stack([packed[row]["input_ids"] for row in rows]))
    return all_ids


def parts_of(model, ids: Tensor, design) -> dict[str, Tensor]:
    """Cross-entropy and regularizers [layers] of a pass, by loops."""
    outputs = model(ids, output_router_logits=True)
    parts = {"loss": cross_entropy(outputs.logits, ids)}
    for name in REGULARIZERS:
        values = []
        for logits_TE in outputs.router_logits:
            index_TK = logits_TE.topk(design.experts_per_token).indices
            values.append(by_loops(name, logits_TE, index_TK, design.devices))
        parts[name] = torch.stack(values)
    return parts


def cross_entropy(logits: Tensor, ids: Tensor) -> Tensor:
    log_probs = logits.log_softmax(-1)
    losses = []
    for row in range(len(ids)):
        for position, next_token in enumerate(ids[row, 1:].tolist()):
            losses.append(-log_probs[row, position, next_token])
    return torch.stack(losses).sum() / len(losses)


def gradients_of_formula(
    training: PretrainingInputs, weights: dict[str, Tensor], doubled: str | None = None
) -> dict[str, Tensor]:
    """Gradients of step 0 at these weights. The part `doubled` has twice its coefficient."""
    design = training.design
    coefficients = {
        "loss": 1.0,
        "balance_loss": design.aux_loss,
        "z_loss": design.z_loss,
        "device_loss": design.device_loss,
    }
    if doubled is not None:
        coefficients[doubled] *= 2.0
    model = model_without_auxiliary_loss(training)
    model.load_state_dict(weights)
    total = torch.zeros(())
    for ids in passes(training, 0):
        for name, value in parts_of(model, ids, design).items():
            total = total + coefficients[name] * value.mean() / design.gradient_accumulation
    total.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def model_without_auxiliary_loss(training: PretrainingInputs):
    """A new model of the design; `parts_of` asks it for router logits."""
    config = training_module.architecture(training.design, training.tokenizer)
    model = training_module.AutoModelForCausalLM.from_config(config)
    router = training.design.router
    if router != "expert":
        model.set_experts_implementation("eager")
    if router in UNITS:
        model.set_units(unit_tables(training.tokenizer, router))
    model.router_aux_loss_coef = 0.0
    return model.train()


def distance(gradients: dict[str, Tensor], other_gradients: dict[str, Tensor]) -> float:
    """The largest difference."""
    largest = 0.0
    for name, gradient in gradients.items():
        largest = max(largest, (gradient - other_gradients[name]).abs().max().item())
    return largest


@pytest.mark.parametrize(
    ("name", "accumulation"),
    [("olmoe", 2), ("deepseek", 2), ("shared", 1), ("word", 2), ("expert", 2)],
)
def test_a_steps_gradient_is_that_of_the_formula(name, accumulation, tmp_path, steps):
    """The loss is the cross-entropy per token and the regularizers times their coefficients.

    Each regularizer is the mean over passes and MoE layers. A coefficient that is twice as large
    changes the gradient by 100 times what rounding does.
    """
    settings = HEAVY | DESIGNS[name] | {"steps": 1, "gradient_accumulation": accumulation}
    training = training_of(tmp_path, **settings)
    train(training)
    [(weights, gradients)] = steps
    assert distance(gradients, gradients_of_formula(training, weights)) < 3e-6

    parts = ["loss", "z_loss"]
    if name != "expert":
        parts += ["balance_loss", "device_loss"]
    for part in parts:
        wrong_gradients = gradients_of_formula(training, weights, doubled=part)
        assert distance(gradients, wrong_gradients) > 3e-4, part


# The log


def lines(training: PretrainingInputs, key: str) -> list[dict]:
    """The lines of the log that have a key."""
    text = (training.folder / "log.jsonl").read_text()
    all_lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in all_lines if key in line]


@pytest.mark.parametrize("name", ["olmoe", "shared", "word"])
def test_the_log_has_cross_entropy_alone_and_each_regularizer_by_layer(name, tmp_path):
    """Means over the steps of a line and their passes: two steps of two passes."""
    settings = HEAVY | DESIGNS[name] | STILL | {"gradient_accumulation": 2, "save_steps": 2}
    training = training_of(tmp_path, **settings)
    model = train(training).model.train()
    moe_layers = training.design.layers
    if training.design.backbone == "deepseek":
        moe_layers -= 1  # its first layer is dense

    first_line, second_line = lines(training, "loss")
    for line, steps_of_line in ((first_line, (0, 1)), (second_line, (2, 3))):
        parts = []
        with torch.no_grad():
            for step in steps_of_line:
                for ids in passes(training, step):
                    parts.append(parts_of(model, ids, training.design))
        assert len(parts) == 4
        mean_loss = sum(part["loss"].item() for part in parts) / 4
        assert line["loss"] == pytest.approx(mean_loss, abs=1e-5)
        for key in REGULARIZERS:
            mean_by_layer = torch.stack([part[key] for part in parts]).mean(0)
            assert len(line[key]) == moe_layers
            assert line[key] == pytest.approx(mean_by_layer.tolist(), rel=1e-5)

    evaluated_steps = [line["step"] for line in lines(training, "validation_loss")]
    assert evaluated_steps == [2, 4]


@pytest.mark.parametrize(
    ("router", "regularizers"), [("token", {"balance_loss", "z_loss"}), ("expert", {"z_loss"})]
)
def test_transformers_computes_no_auxiliary_loss(router, regularizers, tmp_path, monkeypatch):
    """Its one-hot choices of all layers take several times the memory of the router logits."""

    def fail(*args, **options):
        raise AssertionError("the auxiliary loss of transformers")

    monkeypatch.setattr("transformers.models.olmoe.modeling_olmoe.load_balancing_loss_func", fail)
    training = training_of(tmp_path, router=router, steps=1)
    assert set(train(training).weights) == regularizers
    assert len(lines(training, "loss")[0]["z_loss"]) == 2


@pytest.mark.parametrize(
    ("backbone", "settings"),
    [("olmoe", {"aux_loss": 0.0, "z_loss": 0.0}), ("dense", HEAVY | {"experts": 3})],
)
def test_without_regularizers_nothing_of_them_is_logged(backbone, settings, tmp_path):
    training = training_of(tmp_path, backbone=backbone, **settings, **STILL)
    trained = train(training)
    assert trained.weights == {}
    [line] = lines(training, "loss")
    for name in REGULARIZERS:
        assert name not in line

    all_ids = []
    for step in range(4):
        all_ids += passes(training, step)
    with torch.no_grad():
        losses = losses_of(trained.model, torch.cat(all_ids))
    assert line["loss"] == pytest.approx(losses.mean().item(), abs=1e-5)


# Noise


def test_a_regularizer_counts_even_with_noise_by_the_noisy_choice(tmp_path, monkeypatch):
    """The experts that the tokens got, and not those of the highest logits."""
    computed = []
    compute = PretrainTrainer._regularizers

    def record(self):
        regularizers = compute(self)
        computed.append((self.routing.layers[0], regularizers["balance_loss"][0].item()))
        return regularizers

    monkeypatch.setattr(PretrainTrainer, "_regularizers", record)
    train(training_of(tmp_path, routing_noise=5.0, steps=2))

    assert len(computed) == 2
    for layer, balance_loss in computed:
        expected = by_loops("balance_loss", layer.logits_TE, layer.index_TK)
        assert balance_loss == pytest.approx(expected.item(), rel=1e-5)
        clean_index_TK = layer.logits_TE.topk(2).indices
        assert not layer.index_TK.equal(clean_index_TK)


def test_each_row_has_its_temperature(tmp_path, monkeypatch):
    passes_begun = []
    one_pass = TrainingRouting.one_pass

    def record(self, row_B, length):
        passes_begun.append((row_B.tolist(), length, self.noise.temperatures[row_B].tolist()))
        return one_pass(self, row_B, length)

    monkeypatch.setattr(TrainingRouting, "one_pass", record)
    train(training_of(tmp_path, seed=3, routing_noise=2.0, gradient_accumulation=2))

    drawn = (2.0 * np.random.default_rng([3, 16]).random(16, dtype=np.float32)).tolist()
    assert len(passes_begun) == 8
    for number, (rows, length, temperatures) in enumerate(passes_begun):
        assert rows == [2 * number, 2 * number + 1]
        assert length == 12
        assert temperatures == pytest.approx(drawn[2 * number : 2 * number + 2])


# Held-out rows


def test_held_out_losses_are_those_of_single_rows_without_noise(tmp_path):
    """3 rows in passes of 2: the last pass is half empty."""
    training = training_of(tmp_path, routing_noise=9.0, **STILL)
    model, training_info = train_together(training)
    model.eval()
    expected = []
    with torch.no_grad():
        for ids in torch.from_numpy(training.held_out).long():
            expected.append(cross_entropy(model(ids[None]).logits, ids[None]).item())

    validation = training_info["validation"]
    assert validation["rows"] == 3
    assert validation["row_losses"] == pytest.approx(expected, abs=1e-5)
    assert validation["loss"] == pytest.approx(sum(expected) / 3, abs=1e-5)
    low, high = validation["ci95"]
    assert low <= validation["loss"] <= high
    last_line = lines(training, "validation_loss")[-1]
    assert last_line["validation_loss"] == pytest.approx(validation["loss"])


@pytest.mark.slow
def test_evaluating_more_often_changes_no_weight(tmp_path):
    settings = {"routing_noise": 1.0, "steps": 3}
    after_each_step = train(training_of(tmp_path / "often", save_steps=1, **settings))
    at_the_end = train(training_of(tmp_path / "once", save_steps=9, **settings))
    assert_same(after_each_step.model, at_the_end.model)


@pytest.mark.parametrize(
    ("function_name", "message_name"),
    [
        pytest.param("z_loss", "loss", id="a regularizer in step 3"),
        pytest.param("losses_of", "validation loss", id="the held-out loss after step 3"),
    ],
)
def test_a_loss_that_is_no_number_stops_with_the_last_checkpoint(
    function_name, message_name, tmp_path, monkeypatch
):
    """Each function is called twice a step: for two layers, or for two passes of held-out rows."""
    function = getattr(trainer_module, function_name)
    calls = 0

    def nan_from_step_3(*args):
        nonlocal calls
        calls += 1
        if calls > 4:
            return function(*args) * math.nan
        return function(*args)

    monkeypatch.setattr(trainer_module, function_name, nan_from_step_3)
    training = training_of(tmp_path, save_steps=1)
    message = f"The {message_name} of training step 3 is nan. The last checkpoint is kept."
    with pytest.raises(TrainingError, match=message):
        train(training)
    assert last_checkpoint(tmp_path / "checkpoints").name == "checkpoint-2"
    assert "NaN" not in (tmp_path / "log.jsonl").read_text()
