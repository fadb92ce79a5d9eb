"""Optimizers, clipping and mixed precision of a fine-tuning. Broken by: a key that does not reach transformers, memory of
moments that an optimizer does not keep.
"""

from __future__ import annotations

import pytest
import torch

from moe_lab.methods.finetune_freeze import training
from moe_lab.methods.finetune_freeze.config import EIGHT_BIT, MOMENTS
from tests.support.models import make_model
from tests.support.trainings import train, training_of


@pytest.mark.parametrize("optimizer", sorted({*MOMENTS} - {EIGHT_BIT}))
def test_every_optimizer_trains_and_keeps_the_moments_that_are_counted(optimizer, tmp_path):
    model = make_model("olmoe")
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    course = train(model, tmp_path, optimizer=optimizer, max_steps=2, save_steps=1)
    assert all(not torch.equal(one, before[name]) for name, one in model.named_parameters())
    state = torch.load(tmp_path / "checkpoints" / "checkpoint-2" / "optimizer.pt", weights_only=True)["state"]
    numbers = sum(parameter.numel() for parameter in model.parameters())
    kept = sum(one.numel() for own in state.values() for one in own.values() if getattr(one, "dim", int)())
    assert kept == MOMENTS[optimizer] * numbers
    assert course["phases"][0]["optimizer_bytes"] == 4 * kept


def test_gradients_are_clipped_to_the_norm_that_is_given(tmp_path):
    """By one step of plain SGD, whose length is the learning rate times the norm."""
    lengths = {}
    for norm in (None, 1e-3):
        model = make_model("olmoe")
        before = torch.cat([parameter.detach().clone().flatten() for parameter in model.parameters()])
        settings = {"optimizer": "sgd", "weight_decay": 0.0, "warmup_ratio": 0.0, "max_steps": 1}
        train(model, tmp_path / str(norm), max_grad_norm=norm, learning_rate=1.0, **settings)
        after = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        lengths[norm] = (after - before).norm().item()
    assert lengths[1e-3] == pytest.approx(1e-3, rel=1e-2) and lengths[None] > 1e-2


@pytest.mark.parametrize(
    "dtype, bf16, found", [("bfloat16", None, True), ("float32", True, True), ("bfloat16", False, False)]
)
def test_mixed_precision_is_that_of_the_dtype_unless_it_is_given(dtype, bf16, found, tmp_path):
    assert training._arguments(training_of(tmp_path, dtype=dtype, bf16=bf16)).bf16 is found
