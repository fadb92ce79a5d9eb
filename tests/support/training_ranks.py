"""What each of two processes does that fine-tune together."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from moe_lab.errors import TrainingError
from moe_lab.methods.finetune_freeze.training import train_on_rank
from moe_lab.methods.trainer import Log, MoeTrainer
from moe_lab.runs.distributed import sharded
from tests.support.trainings import training_of


def whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value.clone()


def watched(on_step_end, training):
    """`Log.on_step_end`, which after each phase keeps weights, the names of what has moments, and whether all is split."""

    def and_write(self, args, state, control, model=None, optimizer=None, **kwargs):
        on_step_end(self, args, state, control)
        if state.global_step not in training.recipe.ends(len(training.rows)):
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
        MoeTrainer.compute_loss = troubled(
            compute_loss, settings.pop("die", None), settings.pop("poison", None)
        )
        training = training_of(folder, model=model, **settings)
        Log.on_step_end = watched(on_step_end, training)
        try:
            train_on_rank(training)
        except TrainingError as error:
            (folder / f"error.rank{os.environ['RANK']}").write_text(str(error))
    dist.destroy_process_group()
