"""Freezing by phases: a frozen parameter has no gradient and loses its optimizer state.

The optimizer skips a parameter whose gradient is None: no step, no momentum, no weight decay. Freezing is therefore
`requires_grad = False`, and the optimizer holds every parameter from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import TrainerCallback

from moe_lab.methods.finetune_freeze.parameter_groups import Groups, parameter_groups
from moe_lab.methods.finetune_freeze.schedule import Phase, phase_at

ADAM_MOMENTS = 2
"""Numbers that AdamW keeps per trained number."""


class Freezing(TrainerCallback):
    """Freezes and unfreezes at the first step of each phase, also in a resumed training.

    Parameters that the model itself does not train stay frozen.
    """

    def __init__(self, groups: Groups, phases: Sequence[Phase], ends: Sequence[int]):
        self.phases, self.ends = phases, ends
        self.groups = {
            name: [parameter for parameter in group if parameter.requires_grad]
            for name, group in groups.items()
        }
        self.phase: int | None = None

    def on_step_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
    ) -> None:
        phase = phase_at(self.ends, state.global_step)
        if phase != self.phase:
            self.phase = phase
            self.freeze(self.phases[phase].frozen, optimizer)

    def freeze(self, frozen: Sequence[str], optimizer: Any) -> None:
        """Freeze these groups and no others; drop their gradients and optimizer state."""
        for name, group in self.groups.items():
            for parameter in group:
                parameter.requires_grad = name not in frozen
                if name in frozen:
                    parameter.grad = None
                    if optimizer is not None:
                        optimizer.state.pop(parameter, None)

    def memory(self, phase: Phase) -> dict[str, int]:
        """Bytes of gradients and of AdamW's moments in a phase, and the bytes that full fine-tuning adds."""
        sizes = {
            name: sum(parameter.numel() * parameter.element_size() for parameter in group)
            for name, group in self.groups.items()
        }
        trained = sum(size for name, size in sizes.items() if name not in phase.frozen)
        saved = sum(sizes.values()) - trained
        return {
            "gradient_bytes": trained,
            "optimizer_bytes": ADAM_MOMENTS * trained,
            "saved_bytes": (1 + ADAM_MOMENTS) * saved,
        }


def most_memory(model: nn.Module, phases: Sequence[Phase]) -> int:
    """Bytes of the weights, and of gradients and AdamW's moments in the phase that has most of them."""
    freezing = Freezing(parameter_groups(model), phases, ends=[])
    told = [freezing.memory(phase) for phase in phases]
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return weights + max(phase["gradient_bytes"] + phase["optimizer_bytes"] for phase in told)


class UpTo(TrainerCallback):
    """Stops after a step, with a checkpoint."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            control.should_save = control.should_log = control.should_training_stop = True
