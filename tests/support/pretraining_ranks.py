"""What each of two processes does that pre-train together."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from moe_lab.errors import TrainingError
from moe_lab.methods.pretrain import trainer
from moe_lab.methods.pretrain.training import train
from tests.support.pretrainings import training_of


def pretrain_in_turn(trainings: dict[Path, dict[str, Any]]) -> None:
    """Train each design and write down what this process's model holds.

    `poison` makes the loss of process 1 no number in that step.
    """
    dist.init_process_group("gloo")
    z_loss = trainer.z_loss
    for folder, settings in trainings.items():
        poison, passes = settings.pop("poison", None), []

        def troubled(logits_TE, poison=poison, passes=passes):
            passes.append(1)
            bad = os.environ["RANK"] == "1" and poison is not None and len(passes) > poison
            return z_loss(logits_TE) * (float("nan") if bad else 1)

        trainer.z_loss = troubled
        try:
            weights = train(training_of(folder, **settings)).model.state_dict()
            torch.save(weights, folder / f"rank{os.environ['RANK']}.pt")
        except TrainingError as error:
            (folder / f"error.rank{os.environ['RANK']}").write_text(str(error))
    dist.destroy_process_group()
