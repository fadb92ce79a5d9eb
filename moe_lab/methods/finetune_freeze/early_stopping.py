"""Early stopping: the loss on held-out conversations at the end of each epoch, and the stop when it no longer falls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback

from moe_lab.methods.trainer import LOSS


class AtEpochEnds(TrainerCallback):
    """Evaluates after the last step of each epoch and of the training, and stops by `patience`.

    The evaluation precedes the checkpoint of the same step, which therefore has its result. Earlier losses are read
    from the log in the checkpoint, so a resumed training stops where an uninterrupted one does.
    """

    def __init__(self, steps_per_epoch: int, patience: int | None):
        self.steps_per_epoch, self.patience = steps_per_epoch, patience

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.steps_per_epoch == 0 or state.global_step == state.max_steps:
            control.should_evaluate = control.should_log = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.patience is not None:
            control.should_save = True
            control.should_training_stop |= stopped(losses_of(state.log_history), self.patience)


def losses_of(log: Sequence[dict[str, Any]]) -> list[float]:
    """The validation losses in a log."""
    return [line[LOSS] for line in log if LOSS in line]


def stopped(losses: Sequence[float], patience: int) -> bool:
    """Whether none of the last `patience` losses is lower than the lowest loss before them."""
    return len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience])
