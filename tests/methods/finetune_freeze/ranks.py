"""What each process of test_processes.py does: `... <model> <folder> <settings as JSON>`.

Trains, and writes down after each phase what this process's model holds. `die` kills process 1 in that step; `poison`
makes its loss there no number.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from moe_lab.errors import TrainingError
from moe_lab.methods.finetune_freeze.trainer import FreezeTrainer
from moe_lab.methods.finetune_freeze.training import train_phases
from moe_lab.methods.training import MoeTrainer
from moe_lab.processes import sharded
from tests.methods.finetune_freeze.runs import training_of

torch.set_num_threads(1)
MODEL, FOLDER, SETTINGS = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
DIE, POISON = SETTINGS.pop("die", None), SETTINGS.pop("poison", None)
RANK = os.environ["RANK"]


def whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value.clone()


def watched(train):
    """`FreezeTrainer.train`, after which weights, the names of what has moments, and whether all is split are kept."""

    def and_write(self, **options):
        train(self, **options)
        weights = {name: whole(value) for name, value in self.model.state_dict().items()}
        held = {name for name, own in self.model.named_parameters() if own in self.optimizer.state}
        split = all(isinstance(own, DTensor) for own in self.model.parameters())
        torch.save([weights, held, split], FOLDER / f"step{self.state.global_step}.rank{RANK}.pt")

    return and_write


def troubled(compute_loss):
    """The Trainer's `compute_loss`, with what befalls process 1."""

    def and_fail(self, *args, **options):
        if RANK == "1" and self.state.global_step == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        loss, outputs = compute_loss(self, *args, **options)
        bad = RANK == "1" and self.state.global_step == POISON
        return (loss * float("nan") if bad else loss), outputs

    return and_fail


if __name__ == "__main__":
    dist.init_process_group("gloo")
    sharded()
    FreezeTrainer.train = watched(FreezeTrainer.train)
    MoeTrainer.compute_loss = troubled(MoeTrainer.compute_loss)
    try:
        train_phases(training_of(FOLDER, model=MODEL, **SETTINGS))
    except TrainingError as error:
        (FOLDER / f"error.rank{RANK}").write_text(str(error))
    dist.destroy_process_group()
