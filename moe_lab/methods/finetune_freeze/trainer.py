"""The Trainer of `method=finetune-freeze` and its callbacks: freezing, validation,
and checkpoints under FSDP."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler
from transformers import IntervalStrategy, TrainerCallback
from transformers.trainer_pt_utils import get_length_grouped_indices

from moe_lab.methods.finetune_freeze.config import FinetuneConfig
from moe_lab.methods.finetune_freeze.parameter_groups import Groups, parameter_groups, trainable
from moe_lab.methods.finetune_freeze.phases import Phase, phase_at
from moe_lab.methods.tokenized import EMPTY, NO_LOSS, Rows
from moe_lab.methods.trainer import LearningRate, MoeTrainer
from moe_lab.routing.passes import transformers_model

OPTIMIZER = "optimizer_{rank}.pt"
"""The file with a process's shards of the optimizer in a checkpoint. With FSDP, transformers 5.23
saves the whole weights of a model that it loaded sharded, but refuses to save the optimizer."""


def rate(
    method: FinetuneConfig,
    rows: int,
    step: int,
    *,
    router: bool = False,
    schedule: LearningRate | None = None,
) -> float:
    """The learning rate at a step, as a share of `learning_rate`.

    It is the rate of the routers, or of all other parameters. `router_lr` holds in all phases.

    Args:
        schedule: a factor of the highest rate; None: linear warm-up, then linearly to 0.
    """
    steps = method.steps(rows)
    warmup_steps = method.warmup_steps(rows)
    peak = 1.0
    if not router or not method.router_lr:
        phase = method.all_phases[phase_at(method.ends(rows), step)]
        peak = (phase.lr or method.learning_rate) / method.learning_rate
    if schedule is not None:
        return peak * schedule(step)
    if step < warmup_steps:
        return peak * step / warmup_steps
    return peak * max(0.0, (steps - step) / max(1, steps - warmup_steps))


class Freezing(TrainerCallback):
    """Freezes and unfreezes parameters at the first step of each phase, also in a resumed training.

    Parameters that the model itself does not train stay frozen. All others are trainable while the
    model is wrapped for several processes: wrappers never reduce the gradients of parameters that
    are frozen then.
    """

    def __init__(self, groups: Groups, phases: Sequence[Phase], ends: Sequence[int]):
        self.phases = phases
        self.ends = ends
        self.groups = trainable(groups)
        self.phase: int | None = None

    def on_step_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
    ) -> None:
        """Freeze exactly the phase's groups, and remove their gradients and optimizer state."""
        phase = phase_at(self.ends, state.global_step)
        if phase == self.phase:
            return
        self.phase = phase
        for name, group in self.groups.items():
            for parameter in group:
                parameter.requires_grad = name not in self.phases[phase].frozen
                if not parameter.requires_grad:
                    parameter.grad = None
                    optimizer.state.pop(parameter, None)


class AtEpochEnds(TrainerCallback):
    """Evaluates after the last step of each epoch and of the training,
    before the checkpoint of the same step.

    Args:
        steps_per_epoch: None: only after the last step of the training.
    """

    def __init__(self, steps_per_epoch: int | None):
        self.steps_per_epoch = steps_per_epoch

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        is_epoch_end = False
        if self.steps_per_epoch is not None:
            is_epoch_end = state.global_step % self.steps_per_epoch == 0
        if is_epoch_end or state.global_step == state.max_steps:
            control.should_evaluate = True
            control.should_log = True


Arrange = Callable[[torch.Generator], list[int]]
"""A generator -> the numbers of all rows, in the order of an epoch."""


class Order(Sampler[int]):
    """The numbers of all rows, in an order that is drawn again in each epoch,
    and `EMPTY` up to a multiple of `share`.

    The order of an epoch depends on (seed, epoch): no two seeds share an order, in any of their
    epochs.

    Args:
        arrange: the order of an epoch; None: all orders are equally likely.
    """

    def __init__(
        self,
        rows: int,
        share: int,
        seed: int,
        epoch: Callable[[], int],
        arrange: Arrange | None = None,
    ):
        self.rows = rows
        self.seed = seed
        self.epoch = epoch
        self.arrange = arrange
        self.missing = -rows % share

    def __len__(self) -> int:
        return self.rows + self.missing

    def __iter__(self) -> Iterator[int]:
        [state] = np.random.SeedSequence([self.seed, self.epoch()]).generate_state(1)
        generator = torch.Generator().manual_seed(int(state))
        if self.arrange is None:
            yield from torch.randperm(self.rows, generator=generator).tolist()
        else:
            yield from self.arrange(generator)
        yield from [EMPTY] * self.missing


class FreezeTrainer(MoeTrainer):
    """Fine-tunes by a recipe: parameter groups, learning rates, auxiliary loss.

    Raises TrainingError at NaN.
    """

    def __init__(
        self,
        *,
        method: FinetuneConfig,
        validation: Rows,
        schedule: LearningRate | None = None,
        **options: Any,
    ):
        rows = len(options["train_dataset"])
        self.factor = schedule
        """The given schedule, in place of the recipe's."""
        self.method = method
        self.validation = validation
        self.auxiliary = method.router_aux_loss_coef
        self.aux_losses: list[Tensor] = []
        """(auxiliary loss, 1) of each pass since the last line of the log; (0, 0) for a pass
        without answers."""
        self.passes = torch.zeros(())
        """Passes with answers in this optimizer step, over all processes."""
        super().__init__(schedule=[], eval_dataset=validation, **options)
        self.args.save_only_model = False  # each process stores its shards of a split optimizer
        self.freezing = Freezing(parameter_groups(self.model), method.all_phases, method.ends(rows))
        self.add_callback(self.freezing)
        if len(validation):
            by_steps = self.args.eval_strategy == IntervalStrategy.STEPS
            self.add_callback(AtEpochEnds(None if by_steps else method.steps_per_epoch(rows)))
        if self.auxiliary:
            # `compute_loss` adds the loss
            transformers_model(self.model).router_aux_loss_coef = 0.0

    def _get_train_sampler(self, train_dataset: Any = None) -> Order:
        rows = len(self.train_dataset)
        steps = self.method.steps_per_epoch(rows)
        share = self.args.per_device_train_batch_size * self.args.world_size
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return Order(
            rows,
            share,
            seed,
            epoch=lambda: self.state.global_step // steps,
            arrange=self._arrangement(share),
        )

    def _arrangement(self, share: int) -> Arrange | None:
        """The order of rows that `train_sampling_strategy` names; None for `random`.

        Args:
            share: rows of a pass in all processes.
        """
        dataset = self.train_dataset
        rows = len(dataset)
        strategy = self.args.train_sampling_strategy
        if strategy == "sequential":
            return lambda generator: list(range(rows))
        if strategy == "group_by_length":
            lengths = [len(dataset[number]["input_ids"]) for number in range(rows)]
            size = share * self.args.gradient_accumulation_steps
            return partial(_grouped_by_length, lengths, size)
        return None

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """The optimizer over every parameter that the model trains.

        Routers have groups and a learning rate of their own.
        """
        decayed_names = set(self.get_decay_parameter_names(self.model))
        decayed = set()
        order = {}
        for number, (name, parameter) in enumerate(self.model.named_parameters()):
            order[id(parameter)] = number
            if name in decayed_names:
                decayed.add(id(parameter))

        groups = self.freezing.groups
        others = [*groups["shared_experts"], *groups["other"]]
        others.sort(key=lambda parameter: order[id(parameter)])
        all_but_routers = [*groups["experts"], *others]
        router_rate = self.method.router_lr or self.method.learning_rate
        settings = self._optimizer_groups(all_but_routers, self.method.learning_rate, decayed)
        router_settings = self._optimizer_groups(groups["router"], router_rate, decayed)
        rows = len(self.train_dataset)
        schedules: list[Callable[[int], float]] = []
        of_others = partial(rate, self.method, rows, router=False, schedule=self.factor)
        of_routers = partial(rate, self.method, rows, router=True, schedule=self.factor)
        schedules += [of_others] * len(settings)
        schedules += [of_routers] * len(router_settings)
        self.schedule = schedules
        kind, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
        self.optimizer = kind([*settings, *router_settings], **options)
        return self.optimizer

    def _optimizer_groups(
        self, parameters: list[torch.nn.Parameter], peak: float, decayed: set[int]
    ) -> list[dict[str, Any]]:
        """The optimizer's groups of some parameters: those with weight decay, and those without.

        An empty group is left out.

        Args:
            peak: the highest learning rate.
            decayed: `id(parameter)` of all parameters with weight decay.
        """
        with_decay = []
        without_decay = []
        for parameter in parameters:
            if id(parameter) in decayed:
                with_decay.append(parameter)
            else:
                without_decay.append(parameter)
        settings: list[dict[str, Any]] = []
        if with_decay:
            weight_decay = self.args.weight_decay
            settings.append({"params": with_decay, "lr": peak, "weight_decay": weight_decay})
        if without_decay:
            settings.append({"params": without_decay, "lr": peak, "weight_decay": 0.0})
        return settings

    def get_batch_samples(self, *args: Any) -> Any:
        """The batches of an optimizer step. Counts those with answers."""
        batches, tokens = super().get_batch_samples(*args)
        if self.auxiliary:
            passes = sum(float(_has_answer(batch)) for batch in batches)
            self.passes = self.accelerator.reduce(torch.tensor(passes, device=self.args.device))
        return batches, tokens

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Cross-entropy of the answers' tokens,
        plus the routers' load-balancing loss times its coefficient.

        The load-balancing loss of a step is the mean over its passes with answers. `weight` undoes
        two later divisions: by the processes, which average gradients, and for some models by the
        passes of this process.
        """
        has_answer = 0.0  # or 1.0
        if self.auxiliary:
            has_answer = float(_has_answer(inputs))
            inputs = {**inputs, "output_router_logits": True}
        # label smoothing takes the labels out of the inputs
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.auxiliary:
            divisor = 1
            if not self.model_accepts_loss_kwargs:
                divisor = self.current_gradient_accumulation_steps
            weight = has_answer * self.args.world_size * divisor / self.passes
            loss = loss + self.auxiliary * weight * outputs.aux_loss
            aux_loss = outputs.aux_loss.detach().float()
            counted = torch.stack([aux_loss * has_answer, torch.full_like(aux_loss, has_answer)])
            self.aux_losses.append(counted)
        return (loss, outputs) if return_outputs else loss

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Cross-entropy per answer token of the validation conversations,
        in passes of the training's size."""
        size = self.method.pass_size
        processes = self.args.world_size
        sums = torch.zeros(2, device=self.args.device)  # loss, tokens
        self.model.eval()
        with torch.no_grad():
            for start in range(0, len(self.validation), size * processes):
                first = start + size * self.args.process_index
                rows = []
                for number in range(first, first + size):
                    exists = number < len(self.validation)
                    rows.append(self.validation[number if exists else EMPTY])
                inputs = self._prepare_inputs(self.data_collator(rows))
                tokens = (inputs["labels"][:, 1:] != NO_LOSS).sum()
                # FSDP needs all processes, also those without rows
                loss = self.model(**inputs).loss.float()
                if tokens:
                    sums += torch.stack([loss * tokens, tokens])
        self.model.train()
        total, counted = self.accelerator.reduce(sums).tolist()
        return self.log_validation(total / counted)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the phase and the mean auxiliary loss to what the Trainer logs."""
        if "loss" in logs:
            logs["phase"] = phase_at(self.freezing.ends, self.state.global_step - 1) + 1
            if self.aux_losses:
                sums = torch.stack(self.aux_losses).sum(0)
                total, passes = self.accelerator.reduce(sums).tolist()
                logs["aux_loss"] = total / passes
                self.aux_losses.clear()
        super().log(logs, start_time)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.is_distributed_loading_by_transformers:
            return super()._save_optimizer_and_scheduler(output_dir)
        states = [self.optimizer.state_dict(), self.lr_scheduler.state_dict()]
        torch.save(states, self._shards(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or not self.is_distributed_loading_by_transformers:
            return super()._load_optimizer_and_scheduler(checkpoint)
        optimizer, scheduler = torch.load(self._shards(checkpoint), weights_only=True)
        self.optimizer.load_state_dict(optimizer)
        self.lr_scheduler.load_state_dict(scheduler)

    def _shards(self, checkpoint: str) -> Path:
        return Path(checkpoint) / OPTIMIZER.format(rank=self.args.process_index)


def _grouped_by_length(lengths: list[int], size: int, generator: torch.Generator) -> list[int]:
    """The numbers of all rows, in groups of `size` of similar length, the longest row first."""
    return get_length_grouped_indices(lengths, size, generator=generator)


def _has_answer(batch: Any) -> Tensor:
    return (batch["labels"][:, 1:] != NO_LOSS).any()
