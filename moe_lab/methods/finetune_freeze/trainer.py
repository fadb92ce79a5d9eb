"""transformers' Trainer with phases: what is frozen has no gradient, and loses its optimizer state.

A parameter whose gradient is None is left alone by the optimizer: no step, no momentum, no weight decay. So freezing is
`requires_grad = False`, and the optimizer holds every parameter from the start, whatever is frozen first.

What wraps a model for several processes looks at `requires_grad` once, when it wraps: gradients of what is unfrozen
later are not averaged, and the processes drift apart. There, a trainer makes the steps of one phase only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from moe_lab.errors import TrainingError
from moe_lab.methods.finetune_freeze.groups import Groups, parameter_groups
from moe_lab.methods.finetune_freeze.order import Order
from moe_lab.methods.finetune_freeze.phases import Phase, phase_at
from moe_lab.methods.finetune_freeze.recipe import Recipe
from moe_lab.methods.finetune_freeze.rows import EMPTY, NO_LOSS, Rows
from moe_lab.methods.finetune_freeze.shards import load_optimizer, save_optimizer
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
                    if optimizer is not None:
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


class UpTo(TrainerCallback):
    """Stops after a step, with a checkpoint."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            control.should_save = control.should_log = control.should_training_stop = True


class FreezeTrainer(MoeTrainer):
    """Fine-tunes by a recipe: parameter groups, learning rates, auxiliary loss; stops at numbers that are none.

    With `phase` it makes the steps of that one only, over a model that it may wrap for several processes.
    """

    control: Any

    def __init__(self, *, recipe: Recipe, validation: Rows, phase: int | None = None, **options: Any):
        rows = len(options["train_dataset"])
        self.validation = validation
        self.recipe, self.auxiliary = recipe, recipe.router_aux_loss_coef
        self.rate, self.router_rate = recipe.rate(rows, router=False), recipe.rate(rows, router=True)
        self.seen: list[Tensor] = []
        """Auxiliary losses since the last line of the log."""
        super().__init__(schedule=self.rate, **options)
        self.args.save_only_model = (
            False  # a sharded model's optimizer is stored here (`shards`), not by the Trainer
        )
        self.freezing = Freezing(parameter_groups(self.model), recipe.phases, recipe.ends(rows))
        self.add_callback(self.freezing)
        if phase is not None:
            self.freezing.freeze(recipe.phases[phase].frozen, None)
            self.add_callback(UpTo(recipe.ends(rows)[phase]))
        if len(validation):
            self.add_callback(AtEpochEnds(recipe.steps_per_epoch(rows), recipe.early_stop_patience))
        if self.auxiliary:
            self.model.router_aux_loss_coef = 0.0  # it is added here, and once per step

    def _get_train_sampler(self, train_dataset: Any = None) -> Order:
        rows, steps = len(self.train_dataset), self.recipe.steps_per_epoch(len(self.train_dataset))
        share = self.args.per_device_train_batch_size * self.args.world_size
        return Order(rows, share, self.args.seed, epoch=lambda: self.state.global_step // steps)

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
        self._check(self.accelerator.reduce(loss.detach()), "loss")
        return (loss, outputs) if return_outputs else loss

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Cross-entropy per answer token of the held-out conversations, in passes of the training's size."""
        size, processes = self.recipe.batch_size, self.args.world_size
        sums = torch.zeros(2, device=self.args.device)  # of the loss, and of tokens
        self.model.eval()
        with torch.no_grad():
            for start in range(0, len(self.validation), size * processes):
                first = start + size * self.args.process_index
                numbers = range(first, first + size)
                rows = [self.validation[i if i < len(self.validation) else EMPTY] for i in numbers]
                inputs = self._prepare_inputs(self.data_collator(rows))
                tokens = (inputs["labels"][:, 1:] != NO_LOSS).sum()
                loss = self.model(**inputs).loss.float()  # all processes take part, rows or none
                if tokens:
                    sums += torch.stack([loss * tokens, tokens])
        self.model.train()
        total, counted = self.accelerator.reduce(sums).tolist()
        mean = total / counted
        self.log({LOSS: mean})
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, {LOSS: mean})
        return {"eval_loss": mean}

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        norm = super()._clip_grad_norm(model)
        self._check(norm, "gradient")
        return norm

    def _check(self, value: Tensor, what: str) -> None:
        if not torch.isfinite(value).all():
            raise TrainingError(
                f"The {what} of training step {self.state.global_step} is {value.item()}. The last checkpoint is kept. "
                "Lower method.learning_rate, or compute in another dtype: dtype=bfloat16 or dtype=float32."
            )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the phase and the mean auxiliary loss to what the Trainer logs."""
        if "loss" in logs:
            logs["phase"] = phase_at(self.freezing.ends, self.state.global_step - 1) + 1
            if self.seen:
                mean = torch.stack(self.seen).mean()
                logs["aux_loss"] = self.accelerator.reduce(mean, "mean").item()
                self.seen.clear()
        super().log(logs, start_time)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.is_distributed_loading_by_transformers:
            save_optimizer(self.optimizer, self.lr_scheduler, Path(output_dir), self.args.process_index)
        else:
            super()._save_optimizer_and_scheduler(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None and self.is_distributed_loading_by_transformers:
            load_optimizer(self.optimizer, self.lr_scheduler, Path(checkpoint), self.args.process_index)
        else:
            super()._load_optimizer_and_scheduler(checkpoint)
