"""The checked Trainer. Broken by: a step after a loss or gradient that is NaN, one pass of several that is not checked, a
loss of an earlier step that is counted again, a checkpoint that is promised and does not exist.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import TrainingArguments

from moe_lab.errors import TrainingError
from moe_lab.methods.trainer import MoeTrainer


class Line(nn.Module):
    """A loss of one number; `factor` is multiplied to the loss of each pass, `slope` to its gradient."""

    def __init__(self, factors: list[float], slopes: list[float]):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.factors, self.slopes = factors, slopes
        self.passes = 0

    def forward(self, x, labels=None):
        factor, slope = self.factors[self.passes], self.slopes[self.passes]
        self.passes += 1
        value = (self.weight * x.mean()).sum()
        value.register_hook(lambda gradient: gradient * slope)
        return SimpleNamespace(loss=value * factor)


class Watched(MoeTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = model(**inputs).loss
        return loss


def train(folder, factors=None, slopes=None, accumulation: int = 1):
    model = Line(factors or [1.0] * 6, slopes or [1.0] * 6)
    settings = TrainingArguments(
        output_dir=str(folder),
        max_steps=6 // accumulation,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=accumulation,
        learning_rate=0.1,
        weight_decay=0.0,
        logging_nan_inf_filter=False,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        dataloader_pin_memory=False,
    )
    rows = [{"x": torch.ones(2), "labels": torch.ones(1)}] * 6
    trainer = Watched(schedule=lambda step: 1.0, model=model, args=settings, train_dataset=rows)
    return trainer, model


def test_finite_losses_train_to_the_end(tmp_path):
    trainer, model = train(tmp_path, accumulation=2)
    trainer.train()
    assert trainer.state.global_step == 3 and model.passes == 6 and trainer.losses == []
    assert model.weight.item() < 0.8


@pytest.mark.parametrize(
    "numbers, accumulation, told, kept",
    [
        *(
            ({"factors": [1, 1, bad, 1, 1, 1]}, 1, f"The loss of training step 3 is {bad}", 0.8)
            for bad in (math.nan, math.inf, -math.inf)
        ),
        ({"factors": [1, 1, math.nan, 1, 1, 1]}, 2, "The loss of training step 2 is nan", 0.9),
        ({"factors": [math.inf, -math.inf, 1, 1, 1, 1]}, 2, "The loss of training step 1 is nan", 1.0),
        *(
            ({"slopes": [1, bad, 1, 1, 1, 1]}, 1, f"The gradient of training step 2 is {bad}", 0.9)
            for bad in (math.nan, math.inf)
        ),
    ],
    ids=str,
)
def test_it_stops_before_the_step_with_a_number_that_is_none(numbers, accumulation, told, kept, tmp_path):
    """One pass of several is enough: its first one, or infinities of both signs, which are no number together."""
    trainer, model = train(tmp_path, **numbers, accumulation=accumulation)
    with pytest.raises(TrainingError, match=f"{told}. Lower method.learning_rate"):
        trainer.train()
    assert model.weight.item() == pytest.approx(kept), "after the steps of Adam before it"
