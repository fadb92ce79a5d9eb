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


def by_two(wrap: str, model: Path, folder: Path, **settings: Any) -> list[int]:
    """Train once in two processes; their exit codes."""
    return all_by_two(wrap, model, {folder: settings})


def all_by_two(wrap: str, model: Path, trainings: dict[Path, dict[str, Any]]) -> list[int]:
    """Train one model after the other in the same two processes; their exit codes."""
    environment = FSDP if wrap == "fsdp" else {}
    common = SETTINGS | {"gradient_accumulation": 1}
    settings_by_folder = {}
    for folder, settings in trainings.items():
        settings_by_folder[folder] = common | settings
    log = model.parent / "ranks.log"
    return fork_ranks(train_in_turn, model, settings_by_folder, log=log, **environment)


def by_one(model: Path, folder: Path, **settings: Any) -> dict[int, dict[str, torch.Tensor]]:
    """Weights after each step, in a single process with as many batches per step."""
    trained = deepcopy(small_model("olmoe"))
    weights_by_step = {}

    def copy_weights(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        weights = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
        weights_by_step[state.global_step] = weights

    all_settings = SETTINGS | {"gradient_accumulation": 2} | settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Log, "on_step_begin", copy_weights, raising=False)
        finetune(training_of(folder, model=model, **all_settings), trained)
    weights_by_step[6] = trained.state_dict()
    return weights_by_step


# What each of two processes does


def rank() -> str:
    return os.environ["RANK"]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor of all processes."""
    if isinstance(tensor, DTensor):
        return tensor.full_tensor()
    return tensor.clone()


def watched(on_step_end: Any, training: Any) -> Any:
    """`Log.on_step_end`, which writes a line after each phase.

    The line has the weights, the names of parameters with moments, and whether all moments
    are split.
    """

    def log_and_write(
        self: Any,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        on_step_end(self, args, state, control)
        if state.global_step not in training.method.ends(len(training.rows)):
            return
        if hasattr(model, "module"):
            model = model.module
        weights = {name: whole(tensor) for name, tensor in model.state_dict().items()}
        moments = set()
        for name, parameter in model.named_parameters():
            if parameter in optimizer.state:
                moments.add(name)
        is_split = all(isinstance(parameter, DTensor) for parameter in model.parameters())
        file = training.folder / f"step{state.global_step}.rank{rank()}.pt"
        torch.save([weights, moments, is_split], file)

    return log_and_write


def troubled(compute_loss: Any, die: int | None, poison: int | None) -> Any:
    """The Trainer's `compute_loss`.

    Process 1 dies in step `die`; its loss in step `poison` is not a number.
    """

    def compute_or_fail(self: Any, *args: Any, **options: Any) -> Any:
        step = self.state.global_step
        if rank() == "1" and step == die:
            os.kill(os.getpid(), signal.SIGKILL)
        loss, outputs = compute_loss(self, *args, **options)
        if rank() == "1" and step == poison:
            loss = loss * float("nan")
        return loss, outputs

    return compute_or_fail


def train_in_turn(model: Path, trainings: dict[Path, dict[str, Any]]) -> None:
    """Train each model, and write down after each phase what this process's model holds.

    The settings `die` and `poison` are those of `troubled`.
    """
    dist.init_process_group("gloo")
    sharded()
    on_step_end = Log.on_step_end
    compute_loss = MoeTrainer.compute_loss
    for folder, settings in trainings.items():
        die = settings.pop("die", None)
        poison = settings.pop("poison", None)
        training = training_of(folder, model=model, **settings)
        MoeTrainer.compute_loss = troubled(compute_loss, die, poison)
        Log.on_step_end = watched(on_step_end, training)
        try:
            train_on_rank(training)
        except TrainingError as error:
            (folder / f"error.rank{rank()}").write_text(str(error))
    dist.destroy_process_group()
