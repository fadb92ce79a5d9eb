"""The same fine-tuning in one process and in two, and what each of the two does."""

import os
import signal
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from moe_lab.errors import TrainingError
from moe_lab.methods import trainer
from moe_lab.methods.finetune_freeze.training import finetune, train_on_rank
from moe_lab.methods.trainer import Log, MoeTrainer
from moe_lab.runs.distributed import sharded
from tests.support.models import small_model
from tests.support.ranks import fork_ranks
from tests.support.trainings import training_of

SETTINGS = {
    "count": 11,  # 6 batches of 2, the last one half empty; 3 steps of 2 batches
    "held_out": 3,
    "epochs": 2,
    "batch_size": 2,
    "learning_rate": 1e-3,
    "weight_decay": 0.1,
    "save_steps": 1000,
}
FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
"""The environment of `accelerate launch` with conf/accelerate/fsdp.yaml."""


def by_two(wrap: str, model: Path, folder: Path, **settings) -> list[int]:
    """Train once in two processes; their exit codes."""
    return all_by_two(wrap, model, {folder: settings})


def all_by_two(wrap: str, model: Path, trainings: dict[Path, dict]) -> list[int]:
    """Train one model after the other in the same two processes; their exit codes."""
    environment = FSDP if wrap == "fsdp" else {}
    common = SETTINGS | {"gradient_accumulation": 1}
    settings = {folder: common | settings for folder, settings in trainings.items()}
    return fork_ranks(train_in_turn, model, settings, log=model.parent / "ranks.log", **environment)


def by_one(model: Path, folder: Path, **settings) -> dict[int, dict[str, torch.Tensor]]:
    """Weights after each step, in a single process with as many batches per step."""
    trained, found = deepcopy(small_model("olmoe")), {}

    def keep(self, args, state, control, **kwargs):
        found[state.global_step] = {
            name: value.clone() for name, value in trained.state_dict().items()
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Log, "on_step_begin", keep, raising=False)
        settings = SETTINGS | {"gradient_accumulation": 2} | settings
        finetune(training_of(folder, model=model, **settings), trained)
    return found | {6: trained.state_dict()}


def whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value.clone()


def watched(on_step_end, training):
    """`Log.on_step_end`, which after each phase keeps weights, the names of what has moments, and whether all is split."""

    def and_write(self, args, state, control, model=None, optimizer=None, **kwargs):
        on_step_end(self, args, state, control)
        if state.global_step not in training.method.ends(len(training.rows)):
            return
        model = model.module if hasattr(model, "module") else model
        weights = {name: whole(value) for name, value in model.state_dict().items()}
        held = {name for name, own in model.named_parameters() if own in optimizer.state}
        split = all(isinstance(own, DTensor) for own in model.parameters())
        file = training.folder / f"step{state.global_step}.rank{os.environ['RANK']}.pt"
        torch.save([weights, held, split], file)

    return and_write


def troubled(compute_loss, die, poison):
    """The Trainer's `compute_loss`, with what befalls process 1."""

    def and_fail(self, *args, **options):
        if os.environ["RANK"] == "1" and self.state.global_step == die:
            os.kill(os.getpid(), signal.SIGKILL)
        loss, outputs = compute_loss(self, *args, **options)
        bad = os.environ["RANK"] == "1" and self.state.global_step == poison
        return (loss * float("nan") if bad else loss), outputs

    return and_fail


def train_in_turn(model: Path, trainings: dict[Path, dict[str, Any]]) -> None:
    """Train each model, and write down after each phase what this process's model holds.

    `die` kills process 1 in that step; `poison` makes its loss there no number.
    """
    dist.init_process_group("gloo")
    sharded()
    on_step_end, compute_loss = Log.on_step_end, MoeTrainer.compute_loss
    for folder, settings in trainings.items():
        die, poison = settings.pop("die", None), settings.pop("poison", None)
        MoeTrainer.compute_loss = troubled(compute_loss, die, poison)
        training = training_of(folder, model=model, **settings)
        Log.on_step_end = watched(on_step_end, training)
        try:
            train_on_rank(training)
        except TrainingError as error:
            (folder / f"error.rank{os.environ['RANK']}").write_text(str(error))
    dist.destroy_process_group()
