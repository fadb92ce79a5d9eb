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
        self.factors = factors
        self.slopes = slopes
        self.passes = 0

    def forward(self, x, labels=None):
        factor = self.factors[self.passes]
        slope = self.slopes[self.passes]
        self.passes += 1
        value = (self.weight * x.mean()).sum()
        value.register_hook(lambda gradient: gradient * slope)
        return SimpleNamespace(loss=value * factor)


class LineTrainer(MoeTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(**inputs).loss


ONES = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def trainer_of_line(folder, factors=ONES, slopes=ONES, accumulation: int = 1):
    """A trainer of six passes of one row each."""
    model = Line(factors, slopes)
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
    return LineTrainer(schedule=lambda step: 1.0, model=model, args=settings, train_dataset=rows)


def test_finite_losses_train_to_the_end(tmp_path):
    trainer = trainer_of_line(tmp_path, accumulation=2)
    trainer.train()
    assert trainer.state.global_step == 3
    assert trainer.model.passes == 6
    assert trainer.losses == []
    assert trainer.model.weight.item() < 0.8


NAN = math.nan
INF = math.inf


@pytest.mark.parametrize(
    ("factors", "slopes", "accumulation", "message", "weight"),
    [
        ([1, 1, NAN, 1, 1, 1], ONES, 1, "The loss of training step 3 is nan", 0.8),
        ([1, 1, INF, 1, 1, 1], ONES, 1, "The loss of training step 3 is inf", 0.8),
        ([1, 1, -INF, 1, 1, 1], ONES, 1, "The loss of training step 3 is -inf", 0.8),
        ([1, 1, NAN, 1, 1, 1], ONES, 2, "The loss of training step 2 is nan", 0.9),
        ([INF, -INF, 1, 1, 1, 1], ONES, 2, "The loss of training step 1 is nan", 1.0),
        (ONES, [1, NAN, 1, 1, 1, 1], 1, "The gradient of training step 2 is nan", 0.9),
        (ONES, [1, INF, 1, 1, 1, 1], 1, "The gradient of training step 2 is inf", 0.9),
    ],
)
def test_it_stops_before_the_step_with_a_number_that_is_not_finite(
    factors, slopes, accumulation, message, weight, tmp_path
):
    """One pass of several is enough. Infinities of both signs are no number together."""
    trainer = trainer_of_line(tmp_path, factors, slopes, accumulation)
    with pytest.raises(TrainingError, match=f"{message}. Lower method.learning_rate"):
        trainer.train()
    weight_after_earlier_steps = trainer.model.weight.item()
    assert weight_after_earlier_steps == pytest.approx(weight)


CONTENT = {
    "model": {"weights": "a"},
    "commit": None,
    "data": "b",
    "recipe": {"epochs": 1},
    "seed": 0,
}


class Trainings:
    """Trainings that make a folder, and the ids of those that were done."""

    def __init__(self, output_dir):
        self.config = Config(method=Base.Config(name="base"), output_dir=str(output_dir))
        self.ids = []

    def folder_of(self, content):
        """The folder of the training with this content, which is done where it is missing."""
        artifact = Trained.of(self.config, content, "model")

        def train(folder):
            self.ids.append(artifact.id)
            for name in ("model", "checkpoints"):
                (folder / name).mkdir(exist_ok=True)
            return {"steps": len(self.ids)}

        record = artifact.load_or_train(train)
        assert not (artifact.folder / "checkpoints").exists()
        assert record["id"] == self.ids[record["steps"] - 1]
        return artifact.folder


def test_a_training_is_done_once_and_names_its_model(tmp_path, capsys):
    """Checkpoints that a kill left are removed."""
    trainings = Trainings(tmp_path)
    folder = trainings.folder_of(CONTENT)
    assert capsys.readouterr().err == f"Trained: {folder / 'model'}\n"
    (folder / "checkpoints").mkdir()
    assert trainings.folder_of(dict(CONTENT)) == folder
    assert len(trainings.ids) == 1
    assert capsys.readouterr().err == "", "it is not trained again"


def test_a_training_is_done_again_where_something_is_gone(tmp_path):
    trainings = Trainings(tmp_path)
    folder = trainings.folder_of(CONTENT)
    (folder / "model").rmdir()
    assert trainings.folder_of(CONTENT) == folder
    assert len(trainings.ids) == 2
    (folder / "training.json").write_text('{"id": "of another"}')
    assert trainings.folder_of(CONTENT) == folder
    assert len(trainings.ids) == 3


def test_other_content_is_another_training(tmp_path):
    trainings = Trainings(tmp_path)
    folders = [trainings.folder_of(CONTENT)]
    for key in CONTENT:
        folders.append(trainings.folder_of(CONTENT | {key: "other"}))
    assert len(set(folders)) == 1 + len(CONTENT)
    assert len(trainings.ids) == 1 + len(CONTENT)


def test_what_a_training_leaves_in_reference_cycles_is_removed(tmp_path):
    references = []

    class Node:
        def __init__(self):
            self.cycle = self
            references.append(weakref.ref(self))

    def train(folder):
        Node()
        (folder / "model").mkdir()
        return {"steps": 1}

    config = Config(method=Base.Config(name="base"), output_dir=str(tmp_path))
    Trained.of(config, CONTENT, "model").load_or_train(train)
    [reference] = references
    assert reference() is None


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
    for step in (9, 10, 11):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}" / COMPLETE).touch()
    # by number, and the eleventh was cut off
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
