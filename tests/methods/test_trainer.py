"""The checked Trainer, and trainings that runs share.

Broken by: a step after a loss or gradient that is NaN, one pass of several that is not checked, a
loss of an earlier step that is counted again, a model that answers for another one or is trained
twice, a resume from a checkpoint that is incomplete, a trained model that stays in memory.
"""

import math
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import TrainingArguments

from moe_lab.config.schema import Config
from moe_lab.errors import TrainingError
from moe_lab.methods.base import Base
from moe_lab.methods.trained import COMPLETE, Trained, last_checkpoint
from moe_lab.methods.trainer import MoeTrainer
from tests.support.command import run_command


class Line(nn.Module):
    """A loss of one number. Each pass has a factor of its loss and a factor of its gradient."""

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
        return model(**inputs).loss


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
        (
            {"factors": [math.inf, -math.inf, 1, 1, 1, 1]},
            2,
            "The loss of training step 1 is nan",
            1.0,
        ),
        *(
            ({"slopes": [1, bad, 1, 1, 1, 1]}, 1, f"The gradient of training step 2 is {bad}", 0.9)
            for bad in (math.nan, math.inf)
        ),
    ],
    ids=str,
)
def test_it_stops_before_the_step_with_a_number_that_is_not_finite(
    numbers, accumulation, told, kept, tmp_path
):
    """One pass of several is enough. Infinities of both signs are no number together."""
    trainer, model = train(tmp_path, **numbers, accumulation=accumulation)
    with pytest.raises(TrainingError, match=f"{told}. Lower method.learning_rate"):
        trainer.train()
    assert model.weight.item() == pytest.approx(kept), "after the steps of Adam before it"


CONTENT = {
    "model": {"weights": "a"},
    "commit": None,
    "data": "b",
    "recipe": {"epochs": 1},
    "seed": 0,
}


def folder_of(config, content, trained):
    artifact = Trained.of(config, content, "model")

    def train(folder):
        trained.append(artifact.id)
        for name in ("model", "checkpoints"):
            (folder / name).mkdir(exist_ok=True)
        return {"steps": len(trained)}

    record = artifact.load_or_train(train)
    assert not (artifact.folder / "checkpoints").exists()
    assert record["id"] == trained[record["steps"] - 1]
    return artifact.folder


def test_a_training_is_made_for_other_content_and_where_something_is_gone(tmp_path, capsys):
    """Once each; it prints once where its model is. Checkpoints that a kill left go."""
    config, trained = Config(method=Base.Config(name="base"), output_dir=str(tmp_path)), []
    first = folder_of(config, CONTENT, trained)
    assert capsys.readouterr().err == f"Trained: {first / 'model'}\n"
    (first / "checkpoints").mkdir()
    assert folder_of(config, dict(CONTENT), trained) == first and len(trained) == 1
    assert capsys.readouterr().err == "", "it is not trained again"
    (first / "model").rmdir()
    assert folder_of(config, CONTENT, trained) == first and len(trained) == 2
    (first / "training.json").write_text('{"id": "of another"}')
    assert folder_of(config, CONTENT, trained) == first and len(trained) == 3
    others = {folder_of(config, CONTENT | {key: "other"}, trained) for key in CONTENT}
    assert len(others - {first}) == len(CONTENT) and len(trained) == 3 + len(CONTENT)


def test_what_a_training_leaves_in_reference_cycles_is_removed(tmp_path):
    seen = []

    class Node:
        def __init__(self):
            self.own = self
            seen.append(weakref.ref(self))

    def train(folder):
        (folder / "model").mkdir()
        return {"steps": len([Node()])}

    config = Config(method=Base.Config(name="base"), output_dir=str(tmp_path))
    Trained.of(config, CONTENT, "model").load_or_train(train)
    assert seen[0]() is None


@pytest.mark.slow
def test_a_training_that_diverges_ends_in_one_message(capsys, tmp_path):
    """A learning rate of 1e30 is a valid number."""
    ended = run_command(
        capsys,
        "method=pretrain",
        "method.steps=2",
        "method.layers=1",
        "method.validation_rows=2",
        "method.learning_rate=1e30",
        "model=tiny",
        "task=toy_choice",
        "limit=2",
        "device=cpu",
        f"output_dir={tmp_path}",
    )
    assert ended.code == 1, ended.err
    assert "Traceback" not in ended.err
    assert ended.err.count("Error: ") == 1
    assert not list(tmp_path.glob("models/*/training.json"))


def test_the_newest_complete_one_is_the_last(tmp_path):
    assert last_checkpoint(tmp_path / "none") is None
    checkpoints = {step: tmp_path / f"checkpoint-{step}" for step in (9, 10, 11)}
    for step, checkpoint in checkpoints.items():
        checkpoint.mkdir()
        if step < 11:
            (checkpoint / COMPLETE).touch()
    assert last_checkpoint(tmp_path) == checkpoints[10], "by number, and the eleventh was cut off"
