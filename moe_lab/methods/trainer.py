"""Training a causal language model with transformers' Trainer: log, checkpoints, exact resume."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    AutoConfig,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_scheduler,
)
from transformers.integrations import (
    get_reporting_integration_callbacks,
)

# registers grouped_mm_fallback
from transformers.integrations import moe as _grouped_products  # noqa: F401
from transformers.trainer_callback import ProgressCallback

from moe_lab.config.progress import Progress
from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message
from moe_lab.errors import ConfigError, TrainingError, first_line
from moe_lab.methods.trained import COMPLETE, last_checkpoint, step_of
from moe_lab.methods.training_arguments import ADAM, TrainerConfig
from moe_lab.models.adapters import load_adapter, save_adapter
from moe_lab.models.auto_class import auto_class
from moe_lab.models.facts import resolve_device
from moe_lab.models.source import NO_CODE
from moe_lab.results.atomic import json_line, write_atomically, writing
from moe_lab.routing.passes import is_peft

# Autocast of torch 2.13 leaves grouped products in the dtype of their weights, float32 here:
# most FLOPs of a training.
for _product in ("aten::_grouped_mm", "transformers::grouped_mm_fallback"):
    for _device in ("cpu", "cuda", "xpu"):
        torch.library.register_autocast(_product, _device, torch.bfloat16)

LearningRate = Callable[[int], float]
"""Optimizer step -> factor of the learning rate."""
LOSS = "validation_loss"
"""The validation loss in the log."""


class Log(TrainerCallback):
    """Writes the Trainer's log to `log.jsonl`, marks complete checkpoints,
    and shows a progress bar with the last loss.

    The whole log is rewritten from the Trainer's state, which a resume restores, so no line is
    written twice. With several processes the first one writes; it marks a checkpoint once all of
    them have written their parts. The Trainer's own bar also prints every line of the log.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.progress: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        shown = state.is_world_process_zero
        self.progress = Progress(
            state.max_steps, "training", "step", initial=state.global_step, shown=shown
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log at every checkpoint, and at a validation that may make one.

        A resumed training restarts the mean of a line there, and logs the same lines.
        """
        control.should_log |= control.should_save
        if args.load_best_model_at_end:
            control.should_log |= control.should_evaluate
        if self.progress is not None:
            self.progress.at(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        logged = logs or {}
        losses = [f"{key}={logged[key]:.3f}" for key in ("loss", LOSS) if key in logged]
        if self.progress is not None and losses:
            self.progress.at(state.global_step, " ".join(losses))
        if state.is_world_process_zero:
            lines = []
            for entry in state.log_history:
                if "loss" in entry or LOSS in entry:
                    lines.append(json_line(dict(sorted(entry.items()))))
            write_atomically(self.folder / "log.jsonl", "".join(lines))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _wait_for_others(args)
        if state.is_world_process_zero:
            complete = Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE
            with writing(complete):
                complete.touch()
        _wait_for_others(args)


def _wait_for_others(args: TrainingArguments) -> None:
    if args.world_size > 1:
        torch.distributed.barrier()


def fit(
    folder: Path,
    config: Config,
    model: Any,
    rows: Any,
    *,
    steps: int,
    log_steps: int,
    kind: type[MoeTrainer] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    options: dict[str, Any],
    **arguments: Any,
) -> Any:
    """Train a model in this process, from the folder's last complete checkpoint if there is one;
    returns the Trainer.

    Every training of this package calls it.

    Args:
        folder: of `log.jsonl` and `checkpoints/`.
        log_steps: optimizer steps of a line of the log; a shorter training has one line.
        kind: a `MoeTrainer`, which gets the `options`.
        arguments: further TrainingArguments, such as `bf16` for autocast.
    """
    log = Log(folder)
    settings = settings_of(folder, config, steps=steps, log_steps=log_steps, **arguments)
    if "lr_scheduler_type" in _given_fields(config):
        options = {**options, "schedule": library_schedule(settings, steps)}
    trainer_class = kind or MoeTrainer
    trainer = trainer_class(
        model=model, args=settings, train_dataset=rows, callbacks=[log, *callbacks], **options
    )
    trainer.remove_callback(ProgressCallback)
    checkpoint = last_checkpoint(folder / "checkpoints")
    done = step_of(checkpoint)
    if 0 < done < steps and settings.process_index == 0:
        print_message(f"{folder.name}: training, continuing at step {done:,} of {steps:,}")
    try:
        with _one_wandb_run(settings, folder):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        if log.progress is not None:
            log.progress.close()
    return trainer


@contextmanager
def _one_wandb_run(settings: TrainingArguments, folder: Path) -> Iterator[None]:
    """Inside the context, a training that reports to W&B is a run of its own.

    Its files are in the training's folder, unless WANDB_DIR is set.
    """
    if "wandb" not in settings.report_to or settings.process_index > 0:
        yield
        return
    import wandb

    # as transformers' callback calls it, but for the folder
    run = wandb.init(
        project=os.getenv("WANDB_PROJECT", "huggingface"),
        name=settings.run_name,
        dir=os.getenv("WANDB_DIR", folder),
    )
    with run:
        yield


def settings_of(
    folder: Path, config: Config, *, steps: int, log_steps: int, **arguments: Any
) -> TrainingArguments:
    """The Trainer's settings. Fields of `method.trainer` replace arguments of the same name.

    Raises TypeError, ValueError or ImportError for values that transformers refuses.
    """
    device = resolve_device(config.device).type
    fields: dict[str, Any] = {
        "output_dir": str(folder / "checkpoints"),
        "seed": config.seed,
        "max_steps": steps,
        "logging_steps": min(log_steps, steps),
        "logging_nan_inf_filter": False,
        "save_total_limit": 2,
        "remove_unused_columns": False,
        "dataloader_pin_memory": device != "cpu",
        "use_cpu": device == "cpu",
        "disable_tqdm": False,
        "report_to": [],
    }
    settings = TrainingArguments(**{**fields, **arguments, **_given_fields(config)})
    assert settings.device is not None  # reading the property sets _n_gpu
    settings._n_gpu = min(settings._n_gpu, 1)  # one process, one GPU: no torch.nn.DataParallel
    return settings


def _given_fields(config: Config) -> dict[str, Any]:
    """The fields of `method.trainer`; empty for a method without this key."""
    if isinstance(config.method, TrainerConfig):
        return config.method.trainer
    return {}


def check_fields(config: Config, **arguments: Any) -> None:
    """Raise ConfigError for values of `method.trainer` that transformers refuses, or that need a
    package that is not installed. Loads no weights.

    Args:
        arguments: those of `fit` that are to be checked, too.
    """
    given = _given_fields(config)
    if not given and not arguments:
        return
    if config.offline and given.get("push_to_hub"):
        raise ConfigError("method.trainer.push_to_hub uploads, and offline=true forbids it.")
    steps = 100
    try:
        settings = settings_of(Path(), config, steps=steps, log_steps=1, **arguments)
        _check_optimizer(settings, given)
        library_schedule(settings, steps)
        if "wandb" in settings.report_to and config.logger.name == "wandb":
            raise ValueError("report_to=wandb and logger=wandb are two W&B runs. Give one of them")
        for callback in get_reporting_integration_callbacks(settings.report_to):
            callback()
    except (TypeError, ValueError, ImportError, RuntimeError) as error:
        raise ConfigError(f"method.trainer: {first_line(error)}") from error


def _check_optimizer(settings: TrainingArguments, given: Mapping[str, Any]) -> None:
    """Raise ValueError, TypeError or ImportError for an optimizer that cannot be made, and for its
    fields that have no effect.

    Args:
        given: the fields of `method.trainer`.
    """
    optimizer, options = Trainer.get_optimizer_cls_and_kwargs(settings)
    chosen = f"optim={settings.optim.value}"
    for name, option in ADAM.items():
        if name in given and option not in options:
            raise ValueError(f"{name} has no effect on {chosen}")
    pairs = settings.optim_args.split(",") if settings.optim_args else []
    for pair in pairs:
        others = copy(settings)
        others.optim_args = ",".join(other for other in pairs if other != pair)
        _, options_of_others = Trainer.get_optimizer_cls_and_kwargs(others)
        if options_of_others == options:
            raise ValueError(f"optim_args: {pair} has no effect on {chosen}")
    optimizer([nn.Parameter(torch.zeros(1))], **options)


def library_schedule(settings: TrainingArguments, steps: int) -> LearningRate:
    """transformers' schedule `lr_scheduler_type` as a factor of the learning rate.

    Raises TypeError for `lr_scheduler_kwargs` that it does not have.
    """
    unused = nn.Parameter(torch.zeros(()))
    scheduler = get_scheduler(
        settings.lr_scheduler_type,
        torch.optim.SGD([unused], lr=settings.learning_rate),
        num_warmup_steps=settings.get_warmup_steps(steps),
        num_training_steps=steps,
        scheduler_specific_kwargs=settings.lr_scheduler_kwargs,
    )
    [factor] = scheduler.lr_lambdas
    return factor


class MoeTrainer(Trainer):
    """A Trainer that also restores the experts when a training resumes.

    Checkpoints have a tensor for each expert, and models have fused experts. The Trainer of
    transformers 5.23 does not convert the former to the latter: it warns, and continues with random
    experts. Checkpoints of a PeftModel have only the adapter.

    Raises TrainingError before an optimizer step whose loss or gradient is NaN or infinite, in all
    processes.

    Args:
        schedule: the factor of the learning rate as a function of the step; a list: that of each
            parameter group.
    """

    control: Any

    def __init__(self, *, schedule: LearningRate | list[LearningRate], **options: Any):
        super().__init__(**options)
        self.schedule = schedule
        self.losses: list[Tensor] = []
        """Losses of this optimizer step's passes so far."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, self.schedule)
        return self.lr_scheduler

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with writing(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"):
            super()._save_checkpoint(model, trial)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if not is_peft(self.model):
            super()._save(output_dir, state_dict)
        elif self.args.should_save:
            save_adapter(self.model, Path(output_dir or str(self.args.output_dir)))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        model = model or self.model
        folder = Path(resume_from_checkpoint)
        if is_peft(model):
            load_adapter(model, folder)
            return
        options = {}
        if self.is_distributed_loading_by_transformers:
            options["distributed_config"] = model.config.distributed_config
        model.load_state_dict(own_checkpoint(folder, **options).state_dict())

    def training_step(self, *args: Any, **options: Any) -> Tensor:
        loss = super().training_step(*args, **options)
        self.losses.append(loss)
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The norm of the gradient; the Trainer asks for it before each optimizer step."""
        step = self.state.global_step + 1  # the current one
        self._check(self.accelerator.reduce(torch.stack(self.losses).sum()), "loss", step)
        self.losses.clear()
        norm = super()._get_grad_norm(model, grad_norm)
        self._check(torch.as_tensor(norm), "gradient", step)
        return norm

    def _determine_best_metric(self, metrics: Any, trial: Any) -> bool:
        """Whether the step is the best one so far. It then gets a checkpoint.

        Its weights are read from there at the end.
        """
        is_best = super()._determine_best_metric(metrics, trial)
        if is_best and self.args.load_best_model_at_end:
            self.control.should_save = True
        return is_best

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(str(self.state.best_model_checkpoint))

    def log_validation(self, mean: float) -> dict[str, float]:
        """Log the validation loss, call the callbacks, and return it as `evaluate` does.

        Raises TrainingError if the loss is NaN or infinite.
        """
        self._check(torch.tensor(mean), "validation loss", self.state.global_step)
        self.log({LOSS: mean})
        metrics = {"eval_loss": mean}  # transformers' name, by which it compares
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def _check(self, value: Tensor, what: str, step: int) -> None:
        if torch.isfinite(value).all():
            return
        has_checkpoint = last_checkpoint(Path(self.args.output_dir)) is not None
        kept = "The last checkpoint is kept. " if has_checkpoint else ""
        raise TrainingError(
            f"The {what} of training step {step} is {value.item()}. {kept}Lower "
            "method.learning_rate, or compute in another dtype: dtype=bfloat16 or dtype=float32."
        )


def own_checkpoint(folder: Path | str, **options: Any) -> PreTrainedModel:
    """The model of a training's checkpoint, in the dtype of the trained weights."""
    config = AutoConfig.from_pretrained(folder, **NO_CODE)
    return auto_class(config).from_pretrained(
        folder, config=config, dtype="auto", **NO_CODE, **options
    )
