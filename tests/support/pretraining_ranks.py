"""What each of two processes does that pre-train together."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from moe_lab.methods.pretrain.training import train
from tests.support.pretrainings import training_of


def pretrain_in_turn(trainings: dict[Path, dict[str, Any]]) -> None:
    """Train each design and write down what this process's model holds."""
    dist.init_process_group("gloo")
    for folder, settings in trainings.items():
        weights = train(training_of(folder, **settings)).model.state_dict()
        torch.save(weights, folder / f"rank{os.environ['RANK']}.pt")
    dist.destroy_process_group()
