"""The planned memory of a training, the bytes that are alive while it runs,
and what saves some of them.

Broken by: activations, gradients, moments or copies that are not planned; checkpointing
that changes numbers, 8-bit AdamW that moves frozen tensors, loses its state in a resume,
or trains worse than float32 by more than seeds differ, experts that compute in float32 where
the passes are in bfloat16, a change of training in float32.
"""

import json
import random
import shutil
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from moe_lab.config.schema import ExpertsImplementation, ModelConfig
from moe_lab.engine.footprint import MemoryMeter, known_of
from moe_lab.methods.finetune_freeze.config import EIGHT_BIT
from moe_lab.methods.finetune_freeze.phase_memory import finetuning_peak
from moe_lab.methods.finetune_freeze.phases import SCHEDULES
from moe_lab.methods.finetune_freeze.trainer import Freezing
from moe_lab.methods.finetune_freeze.training import finetune, load_to_train
from moe_lab.methods.pretrain import method as pretrain_method
from moe_lab.methods.pretrain import training as pretraining
from moe_lab.methods.pretrain.method import Pretrain
from moe_lab.methods.pretrain.trainer import AtCheckpoints
from moe_lab.methods.pretrain.training import train as pretrain
from moe_lab.methods.training_memory import STEP_BYTES, bytes_of
from moe_lab.models.facts import model_facts
from tests.support import pretrainings
from tests.support.models import make_model, make_tokenizer, small_model
from tests.support.tiers import by_family, first_fast
from tests.support.trainings import assert_same, rows, train, training_of

FAMILIES = ("olmoe", "gpt_oss", "deepseek")


def drawn(seed: int) -> dict[str, Any]:
    """Random settings of a fine-tuning."""
    rng = random.Random(seed)
    return {
        "length": rng.choice((16, 48, 96)),
        "batch_size": rng.choice((1, 2, 4)),
        "gradient_accumulation": rng.choice((1, 2)),
        "activation_checkpointing": rng.random() < 0.5,
        "dtype": rng.choice(("float32", "bfloat16")),
        "schedule": rng.choice(list(SCHEDULES)),
        "optimizer": rng.choice(("adamw_torch", "adamw_torch_fused")),
    }


LONG = {
    "batch_size": 1,
    "gradient_accumulation": 1,
    "activation_checkpointing": False,
    "schedule": "none",
}
SET = {
    24: LONG | {"length": 480, "batch_size": 8, "dtype": "float32", "router_aux_loss_coef": 0.1},
    25: LONG | {"length": 900, "dtype": "bfloat16"},
}
"""Settings in which the mask and the auxiliary loss (24), or eager attention (25), take most."""


# every family with and without checkpointing, and in each dtype
@pytest.mark.parametrize("seed", first_fast((6, 0, 1, 5, 7, 14, 19, 21, *SET)))
def test_the_plan_of_a_fine_tuning_holds(seed, tmp_path, monkeypatch):
    family = FAMILIES[seed % 3]
    settings = drawn(seed) | SET.get(seed, {})
    length = settings.pop("length")
    dtype = settings.pop("dtype")
    peaks = []
    small_model(family).save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    count = 2 * settings["batch_size"] * settings["gradient_accumulation"]
    training = training_of(tmp_path / "training", count=count, dtype=dtype, **settings)
    config = replace(training.config, model=ModelConfig(path=str(tmp_path / "model")))
    training = replace(training, config=config, rows=rows(count, length))
    facts = model_facts(config.model, dtype=dtype, device="cpu", offline=True)
    planned = finetuning_peak(config.method, config, facts, rows=count, length=length)
    model = load_to_train(training).model
    meter = MemoryMeter(known_of(model))
    monkeypatch.setattr(Freezing, "on_step_end", lambda *_, **__: peaks.append(meter.peak))
    with meter:
        finetune(training, model)
    planned_bytes = bytes_of(known_of(model)) + peaks[-1]  # the checkpoint comes later
    assert planned_bytes <= planned <= 2 * planned_bytes


@pytest.mark.parametrize("kind, copies", [("foreach", 1), ("fused", 0)])
def test_a_step_on_all_tensors_at_once_makes_the_planned_copies(kind, copies):
    """`foreach` is torch's default on a GPU. The fused kernel makes none."""
    parameters = [torch.nn.Parameter(torch.randn(300, 100)) for _ in range(3)]
    made = torch.optim.AdamW(parameters, lr=1e-3, **{kind: True})
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    made.step()
    with MemoryMeter(()) as meter:
        made.step()
    assert meter.peak / bytes_of(parameters) == pytest.approx(copies, abs=0.01)


def test_a_step_of_8_bit_adamw_takes_the_planned_bytes():
    optim = pytest.importorskip("torchao.optim")
    weight = torch.nn.Parameter(torch.randn(512, 512, dtype=torch.bfloat16))
    weight.grad = torch.randn_like(weight)
    made = optim.AdamW8bit([weight], bf16_stochastic_round=True)
    torch.compiler.set_stance("force_eager")
    made.step()
    with MemoryMeter(()) as meter:
        made.step()
    torch.compiler.set_stance("default")
    kept_bytes = (
        2 + 2 + 2
    )  # the weight, its gradient and two moments, which the step changes in place
    assert 0.9 * STEP_BYTES <= meter.peak / weight.numel() - kept_bytes <= STEP_BYTES


DESIGNS = (
    {"router": "token", "dtype": "bfloat16"},
    {
        "router": "token",
        "backbone": "deepseek",
        "shared_experts": 1,
        "experts_per_token": 3,
        "batch_size": 4,
    },
    {"router": "expert", "capacity_factor": 2.0, "gradient_accumulation": 2, "dtype": "bfloat16"},
    {"router": "word", "sequence_length": 64},
    {"backbone": "dense", "gradient_accumulation": 2},
)


@pytest.mark.parametrize("settings", first_fast(DESIGNS))
def test_the_plan_of_a_pre_training_holds(settings, tmp_path, monkeypatch):
    training = pretrainings.training_of(
        tmp_path, **({"sequence_length": 48, "steps": 2} | settings)
    )
    method = Pretrain(training.design)
    method._read = (None, training.tokenizer)
    planned = method.planned_memory(training.config, SimpleNamespace(dtype=training.dtype))
    peaks = []
    monkeypatch.setattr(AtCheckpoints, "on_step_end", lambda *_, **__: peaks.append(meter.peak))
    with MemoryMeter(()) as meter:
        pretraining.train(training)
    assert peaks[-1] <= planned <= 1.75 * peaks[-1]


@pytest.mark.parametrize(("backbone", "routed"), [("olmoe", 1), ("dense", 0)])
def test_the_plan_of_a_pre_training_has_the_losses_of_its_routers(
    backbone, routed, tmp_path, monkeypatch
):
    """They are small next to what a bound leaves free, so that no measured peak would miss them."""
    training = pretrainings.training_of(tmp_path, backbone=backbone)
    method = Pretrain(training.design)
    design = training.design
    method._read = (None, training.tokenizer)
    planned = []
    for size in (0, 10**6):
        monkeypatch.setattr(pretrain_method, "REGULARIZER_BYTES", size)
        planned.append(
            method.planned_memory(training.config, SimpleNamespace(dtype=training.dtype))
        )
    scores = design.batch_size * design.sequence_length * design.experts * design.layers
    assert planned[1] - planned[0] == routed * 10**6 * scores


SETTINGS = {
    "plain": {},
    "balanced, bfloat16": {"router_aux_loss_coef": 0.1, "dtype": "bfloat16"},
    "accumulated": {"gradient_accumulation": 2},
    "bfloat16": {"dtype": "bfloat16"},
}


@pytest.mark.parametrize("settings", first_fast(SETTINGS.values()), ids=SETTINGS)
@pytest.mark.parametrize("family", by_family(("olmoe", "gpt_oss", "deepseek", "qwen3_next")))
def test_activation_checkpointing_trains_the_same_weights(family, settings, tmp_path):
    if "router_aux_loss_coef" in settings and not hasattr(
        small_model(family), "router_aux_loss_coef"
    ):
        pytest.skip("no auxiliary loss in transformers")
    trained = []
    for checkpointing in (False, True):
        model = deepcopy(small_model(family))
        options = {"activation_checkpointing": checkpointing, "schedule": "router-experts"}
        train(model, tmp_path / str(checkpointing), count=8, **options, **settings)
        assert model.is_activation_checkpointing is checkpointing
        trained.append(model.state_dict())
    assert_same(*trained)


@pytest.fixture
def eight_bit() -> Iterator[dict[str, Any]]:
    """The settings of 8-bit AdamW, whose step torchao compiles otherwise."""
    pytest.importorskip("torchao")
    torch.compiler.set_stance("force_eager")
    yield {"optimizer": EIGHT_BIT, "dtype": "bfloat16", "activation_checkpointing": True}
    torch.compiler.set_stance("default")


def in_bfloat16(family: str) -> Any:
    """A model with experts that are large enough for moments in 8 bits."""
    return make_model(family, hidden_size=64, intermediate_size=32).to(torch.bfloat16)


@pytest.mark.parametrize("schedule", first_fast(("router-experts", "none", "experts")))
def test_8_bit_adamw_moves_what_its_schedule_trains(schedule, eight_bit, tmp_path, monkeypatch):
    """Frozen tensors are byte-equal, and weights stay in bfloat16."""
    model = in_bfloat16("olmoe")
    states = []

    def copy(self, args, state, control, **kwargs):
        states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})

    monkeypatch.setattr(Freezing, "on_train_begin", copy)
    monkeypatch.setattr(Freezing, "on_step_end", copy)
    settings = {"count": 8, "schedule": schedule, "warmup_ratio": 0.0, "weight_decay": 0.5}
    train(model, tmp_path, **settings, **eight_bit)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    names = {"router": "mlp.gate", "experts": "mlp.experts.down_proj", "": "self_attn.q_proj"}
    parts = SCHEDULES[schedule]
    """The frozen groups of each equal part of the 4 steps."""
    for step, (before, after) in enumerate(pairwise(states)):
        frozen = parts[step * len(parts) // 4]
        for group, part in names.items():
            name = f"model.layers.1.{part}" + ("" if group == "experts" else ".weight")
            assert torch.equal(before[name], after[name]) == (group in frozen), (
                f"{name} in step {step}"
            )


@pytest.mark.slow
def test_8_bit_adamw_continues_as_if_it_was_not_stopped(eight_bit, tmp_path):
    """Also its moments and the generator that rounds are in the checkpoint."""
    settings = {"count": 12, "schedule": "none-router", "save_steps": 2, **eight_bit}
    whole = in_bfloat16("olmoe")
    resumed = in_bfloat16("olmoe")
    train(whole, tmp_path / "whole", **settings)
    folder = tmp_path / "cut"
    shutil.copytree(tmp_path / "whole", folder)
    shutil.rmtree(folder / "checkpoints" / "checkpoint-6")
    torch.manual_seed(5)
    train(resumed, folder, **settings)
    assert json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["step"] == 6
    assert_same(whole, resumed)


def test_the_bytes_of_8_bit_adamw_are_those_that_are_reported(eight_bit, tmp_path):
    model = in_bfloat16("olmoe")
    [phase] = train(model, tmp_path, count=2, **eight_bit)["phases"]
    state = torch.load(tmp_path / "checkpoints" / "checkpoint-1" / "optimizer.pt")["state"].values()
    held = []
    for moments in state:
        held += _parts(moments["exp_avg"])
        held += _parts(moments["exp_avg_sq"])
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert phase["optimizer_bytes"] == sum(part.nbytes for part in held)
    assert phase["gradient_bytes"] == 2 * numbers


def _parts(moment: torch.Tensor) -> list[torch.Tensor]:
    names = moment.__tensor_flatten__()[0] if hasattr(moment, "codes") else []
    return [getattr(moment, name) for name in names] or [moment]


@pytest.mark.slow
def test_8_bit_adamw_trains_as_well_as_float32(eight_bit, tmp_path):
    """By the losses of four seeds, as means, within their spread in float32."""
    losses: dict[str, list[float]] = {}
    for seed in range(4):
        for name, settings in (("exact", {}), ("8-bit", eight_bit)):
            model = make_model(
                "olmoe", seed=seed, hidden_size=64, intermediate_size=32, num_hidden_layers=2
            )
            model = model.to(torch.bfloat16) if settings else model
            options = {"count": 16, "epochs": 3, "learning_rate": 6e-4, **settings}
            summary = train(model, tmp_path / f"{name}-{seed}", **options)
            assert summary["first_loss"] - summary["last_loss"] > 0.3, summary
            losses.setdefault(name, []).append(summary["last_loss"])
    exact, rounded = losses.values()
    assert abs(sum(rounded) - sum(exact)) / 4 < max(exact) - min(exact), losses


PRODUCTS = ("_grouped_mm", "mm", "bmm", "addmm", "baddbmm")


class Products(TorchDispatchMode):
    """The dtypes of the factors of all matrix products, by the product's name."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: dict[str, set[torch.dtype]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if name in PRODUCTS:
            self.dtypes.setdefault(name, set()).update(tensor.dtype for tensor in args[:2])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("implementation", first_fast(get_args(ExpertsImplementation)))
@pytest.mark.parametrize(
    "family", by_family(("olmoe", "gpt_oss", "deepseek", "mixtral", "qwen3_moe"))
)
def test_all_products_of_a_step_are_in_bfloat16(family, implementation, tmp_path):
    """Forward and backward, those of the experts among them.

    Some other families ask for float32 in their routers.
    """
    model = deepcopy(small_model(family))
    model.set_experts_implementation(implementation)
    with Products() as products:
        train(model, tmp_path, count=2, max_steps=1, dtype="bfloat16")
    assert set().union(*products.dtypes.values()) == {torch.bfloat16}, products.dtypes
    assert ("_grouped_mm" in products.dtypes) == (implementation in ("grouped_mm", "weights_first"))


@pytest.mark.parametrize("router", ("token", "expert"))
def test_all_products_of_a_pre_training_are_in_bfloat16(router, tmp_path):
    with Products() as products:
        trained = pretrain(
            pretrainings.training_of(tmp_path, steps=1, dtype="bfloat16", router=router)
        )
    assert {parameter.dtype for parameter in trained.model.parameters()} == {torch.float32}
    assert set().union(*products.dtypes.values()) == {torch.bfloat16}, products.dtypes


def test_losses_are_near_those_in_float32(tmp_path):
    """Twelve steps at a rate that changes the loss by far more than the bound."""
    exact = train(
        deepcopy(small_model("olmoe")), tmp_path / "float32", dtype="float32", count=2, epochs=12
    )
    rounded = train(
        deepcopy(small_model("olmoe")), tmp_path / "bfloat16", dtype="bfloat16", count=2, epochs=12
    )
    assert exact["first_loss"] - exact["last_loss"] > 0.5
    for loss in ("first_loss", "last_loss"):
        assert rounded[loss] == pytest.approx(exact[loss], rel=0.02)
