"""transformers' Trainer with phases: what is frozen has no gradient, and loses its optimizer state.

A parameter whose gradient is None is left alone by the optimizer: no step, no momentum, no weight decay. So freezing is
`requires_grad = False`, and the optimizer holds every parameter from the start, whatever is frozen first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from moe_lab.errors import MoeLabError
from moe_lab.methods.finetune_freeze.groups import Groups, parameter_groups
from moe_lab.methods.finetune_freeze.phases import Phase, phase_at
from moe_lab.methods.finetune_freeze.recipe import Recipe
from moe_lab.methods.finetune_freeze.rows import NO_LOSS, Rows
from moe_lab.methods.finetune_freeze.validation import LOSS, AtEpochEnds
from moe_lab.methods.training import MoeTrainer

ADAM_MOMENTS = 2
"""Numbers that AdamW keeps per trained number."""


class Freezing(TrainerCallback):
    """Freezes and unfreezes at the phases' first steps, wherever the training starts or continues.

    Parameters that the model itself does not train stay so.
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
                    optimizer.state.pop(parameter, None)

    def memory(self, phase: Phase) -> dict[str, int]:
        """Bytes of gradients and of AdamW's moments in a phase, and what full fine-tuning has more of both."""
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


class FreezeTrainer(MoeTrainer):
    """Fine-tunes by a recipe: parameter groups, learning rates, auxiliary loss; stops at numbers that are none."""

    control: Any

    def __init__(self, *, recipe: Recipe, validation: Rows, **options: Any):
        rows = len(options["train_dataset"])
        self.validation = validation
        self.recipe, self.auxiliary = recipe, recipe.router_aux_loss_coef
        self.rate, self.router_rate = recipe.rate(rows, router=False), recipe.rate(rows, router=True)
        self.seen: list[Tensor] = []
        """Auxiliary losses since the last line of the log."""
        super().__init__(schedule=self.rate, **options)
        self.freezing = Freezing(parameter_groups(self.model), recipe.phases, recipe.ends(rows))
        self.add_callback(self.freezing)
        if len(validation):
            self.add_callback(AtEpochEnds(recipe.steps_per_epoch(rows), recipe.early_stop_patience))
        if self.auxiliary:
            self.model.router_aux_loss_coef = 0.0  # it is added here, and once per step

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW over every parameter that the model trains, the routers in groups of their own."""
        decayed = set(self.get_decay_parameter_names(self.model))
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        groups = self.freezing.groups
        settings = []
        self.rates = []
        for router, members in (
            (False, [*groups["experts"], *groups["other"]]),
            (True, groups["router"]),
        ):
            rate = self.router_rate if router else self.rate
            for decay in (True, False):
                own = [parameter for parameter in members if (names[id(parameter)] in decayed) == decay]
                if own:
                    weight_decay = self.args.weight_decay if decay else 0.0
                    settings.append({"params": own, "lr": rate.learning_rate, "weight_decay": weight_decay})
                    self.rates.append(rate)
        kind, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
        self.optimizer = kind(settings, **options)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, self.rates)
        return self.lr_scheduler

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Cross-entropy of the answers' tokens, and the routers' load-balancing loss at its weight."""
        if self.auxiliary:
            inputs = {**inputs, "output_router_logits": True}
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.auxiliary:
            parts = self.current_gradient_accumulation_steps if self.model_accepts_loss_kwargs else 1
            loss = loss + self.auxiliary * outputs.aux_loss / parts
            self.seen.append(outputs.aux_loss.detach())
        self._check(loss, "loss")
        return (loss, outputs) if return_outputs else loss

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Cross-entropy per answer token of the held-out conversations, in passes of the training's size."""
        model, size = self.model_wrapped, self.recipe.batch_size
        model.eval()
        loss, tokens = torch.zeros((), device=self.args.device), 0
        with torch.no_grad():
            for start in range(0, len(self.validation), size):
                rows = [
                    self.validation[number]
                    for number in range(start, min(start + size, len(self.validation)))
                ]
                inputs = self._prepare_inputs(self.data_collator(rows))
                counted = int((inputs["labels"][:, 1:] != NO_LOSS).sum())
                with self.compute_loss_context_manager():
                    loss += model(**inputs).loss.float() * counted
                tokens += counted
        model.train()
        mean = (loss / tokens).item()
        self.log({LOSS: mean})
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, {LOSS: mean})
        return {"eval_loss": mean}

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        norm = super()._clip_grad_norm(model)
        self._check(norm, "gradient")
        return norm

    def _check(self, value: Tensor, what: str) -> None:
        if not torch.isfinite(value).all():
            raise MoeLabError(
                f"The {what} of training step {self.state.global_step} is {value.item()}. The last checkpoint is kept. "
                "Lower method.learning_rate, or compute in another dtype: dtype=bfloat16 or dtype=float32."
            )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the phase and the mean auxiliary loss to what the Trainer logs."""
        if "loss" in logs:
            logs["phase"] = phase_at(self.freezing.ends, self.state.global_step - 1) + 1
            if self.seen:
                logs["aux_loss"] = torch.stack(self.seen).mean().item()
                self.seen.clear()
        super().log(logs, start_time)
