"""The same fine-tuning in one process and in two."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch

from moe_lab.methods import trainer
from moe_lab.methods.finetune_freeze.training import finetune
from tests.support.models import small_model
from tests.support.ranks import fork_ranks
from tests.support.training_ranks import train_in_turn
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
        found[state.global_step] = {name: value.clone() for name, value in trained.state_dict().items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Log, "on_step_begin", keep, raising=False)
        finetune(
            training_of(folder, model=model, **SETTINGS | {"gradient_accumulation": 2} | settings), trained
        )
    return found | {6: trained.state_dict()}
