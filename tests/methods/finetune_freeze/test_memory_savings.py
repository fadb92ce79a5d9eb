"""What saves memory in training. Broken by: checkpointing that changes numbers, 8-bit AdamW that moves frozen tensors,
loses its state in a resume, or trains worse than float32 by more than seeds differ, experts that compute in float32
where the passes are in bfloat16, a change of training in float32.
"""

import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from itertools import pairwise
from typing import Any, get_args

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from moe_lab.config.schema import ExpertsImplementation
from moe_lab.methods.finetune_freeze.config import EIGHT_BIT, SCHEDULES
from moe_lab.methods.finetune_freeze.trainer import Freezing
from moe_lab.methods.pretrain.training import train as pretrain
from tests.support import pretrainings
from tests.support.models import make_model, small_model
from tests.support.tiers import by_family, first_fast
from tests.support.trainings import assert_same, train

SETTINGS = {
    "plain": {},
    "balanced, bfloat16": {"router_aux_loss_coef": 0.1, "dtype": "bfloat16"},
    "accumulated": {"gradient_accumulation": 2},
    "bfloat16": {"dtype": "bfloat16"},
}


@pytest.mark.parametrize("settings", first_fast(SETTINGS.values()), ids=SETTINGS)
@pytest.mark.parametrize("family", by_family(("olmoe", "gpt_oss", "deepseek", "qwen3_next")))
def test_activation_checkpointing_trains_the_same_weights(family, settings, tmp_path):
    if "router_aux_loss_coef" in settings and not hasattr(small_model(family), "router_aux_loss_coef"):
        pytest.skip("no auxiliary loss in transformers")
    trained = []
    for checkpointing in (False, True):
        model = deepcopy(small_model(family))
        options = {"activation_checkpointing": checkpointing, "schedule": "router-experts"}
        train(model, tmp_path / str(checkpointing), count=8, **options, **settings)
        assert model.is_gradient_checkpointing is checkpointing
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
    model, states = in_bfloat16("olmoe"), []

    def copy(self, args, state, control, **kwargs):
        states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})

    monkeypatch.setattr(Freezing, "on_train_begin", copy)
    monkeypatch.setattr(Freezing, "on_step_end", copy)
    settings = {"count": 8, "schedule": schedule, "warmup_ratio": 0.0, "weight_decay": 0.5}
    train(model, tmp_path, **settings, **eight_bit)
    assert {own.dtype for own in model.parameters()} == {torch.bfloat16}
    names = {"router": "mlp.gate", "experts": "mlp.experts.down_proj", "": "self_attn.q_proj"}
    parts = SCHEDULES[schedule]
    for step, (before, after) in enumerate(pairwise(states)):
        frozen = parts[step * len(parts) // 4]
        for group, part in names.items():
            name = f"model.layers.1.{part}" + ("" if group == "experts" else ".weight")
            assert torch.equal(before[name], after[name]) == (group == frozen), f"{name} in step {step}"


@pytest.mark.slow
def test_8_bit_adamw_continues_as_if_it_was_not_stopped(eight_bit, tmp_path):
    """Also its moments and the generator that rounds are in the checkpoint."""
    settings = {"count": 12, "schedule": "none-router", "save_steps": 2, **eight_bit}
    whole, resumed = in_bfloat16("olmoe"), in_bfloat16("olmoe")
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
    held = [part for own in state for key in ("exp_avg", "exp_avg_sq") for part in _parts(own[key])]
    assert phase["optimizer_bytes"] == sum(part.nbytes for part in held)
    assert phase["gradient_bytes"] == 2 * sum(own.numel() for own in model.parameters())


def _parts(moment: torch.Tensor) -> list[torch.Tensor]:
    names = moment.__tensor_flatten__()[0] if hasattr(moment, "codes") else []
    return [getattr(moment, name) for name in names] or [moment]


@pytest.mark.slow
def test_8_bit_adamw_trains_as_well_as_float32(eight_bit, tmp_path):
    """By the losses of four seeds, as means, within their spread in float32."""
    losses: dict[str, list[float]] = {}
    for seed in range(4):
        for name, settings in (("exact", {}), ("8-bit", eight_bit)):
            model = make_model("olmoe", seed=seed, hidden_size=64, intermediate_size=32, num_hidden_layers=2)
            model = model.to(torch.bfloat16) if settings else model
            options = {"count": 16, "epochs": 3, "learning_rate": 6e-4, **settings}
            told = train(model, tmp_path / f"{name}-{seed}", **options)
            assert told["first_loss"] - told["last_loss"] > 0.3, told
            losses.setdefault(name, []).append(told["last_loss"])
    exact, rounded = losses.values()
    assert abs(sum(rounded) - sum(exact)) / 4 < max(exact) - min(exact), losses


PRODUCTS = ("_grouped_mm", "mm", "bmm", "addmm", "baddbmm")


class Products(TorchDispatchMode):
    """The dtypes of the factors of all matrix products, by the product's name."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: dict[str, set[torch.dtype]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in PRODUCTS:
            self.dtypes.setdefault(name, set()).update(each.dtype for each in args[:2])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("implementation", first_fast(get_args(ExpertsImplementation)))
@pytest.mark.parametrize("family", by_family(("olmoe", "gpt_oss", "deepseek", "mixtral", "qwen3_moe")))
def test_all_products_of_a_step_are_in_bfloat16(family, implementation, tmp_path):
    """Forward and backward, those of the experts among them. Some other families ask for float32 in their routers."""
    model = deepcopy(small_model(family))
    model.set_experts_implementation(implementation)
    with Products() as products:
        train(model, tmp_path, count=2, max_steps=1, dtype="bfloat16")
    assert set().union(*products.dtypes.values()) == {torch.bfloat16}, products.dtypes
    assert ("_grouped_mm" in products.dtypes) == (implementation in ("grouped_mm", "weights_first"))


@pytest.mark.parametrize("router", ("token", "expert"))
def test_all_products_of_a_pre_training_are_in_bfloat16(router, tmp_path):
    with Products() as products:
        trained = pretrain(pretrainings.training_of(tmp_path, steps=1, dtype="bfloat16", router=router))
    assert {own.dtype for own in trained.model.parameters()} == {torch.float32}
    assert set().union(*products.dtypes.values()) == {torch.bfloat16}, products.dtypes


def test_losses_are_near_those_in_float32(tmp_path):
    """Twelve steps at a rate that changes the loss by far more than the bound."""
    told = {
        dtype: train(deepcopy(small_model("olmoe")), tmp_path / dtype, dtype=dtype, count=2, epochs=12)
        for dtype in ("float32", "bfloat16")
    }
    exact, rounded = told.values()
    assert exact["first_loss"] - exact["last_loss"] > 0.5
    for loss in ("first_loss", "last_loss"):
        assert rounded[loss] == pytest.approx(exact[loss], rel=0.02)
