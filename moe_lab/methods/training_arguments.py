"""`method.trainer={...}`: fields of transformers' TrainingArguments, under their own names.

A field acts, or is refused with a reason. One that means the same as a key of the method becomes
that key (`same_keys`), so that both spellings are one training.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, get_type_hints

from moe_lab.config.doors import check_name, library_value
from moe_lab.config.library_logs import hide_kernel_messages
from moe_lab.config.validators import coerce, one_of
from moe_lab.errors import ConfigError
from moe_lab.methods.method import Method

PAGE = (
    "https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments"
)
_EVALUATION = "the validation loss is computed in passes of the training's size"
_OWN_ROWS = "the rows of a training are made here: input_ids and labels"
_RESUMING = "the same command continues from the last checkpoint"
_FSDP = "start the command with accelerate launch --config_file conf/accelerate/fsdp.yaml"
_PROCESSES = "the recipe says which process trains on which rows"
REFUSED = {
    "accelerator_config": _PROCESSES,
    "auto_find_batch_size": "the batch size is part of the recipe. Use method.batch_size=",
    "batch_eval_metrics": _EVALUATION,
    "bf16_full_eval": _EVALUATION,
    "dataloader_drop_last": "every epoch has all rows",
    "ddp_backend": "the processes have begun. Use torchrun and distributed.timeout=",
    "ddp_find_unused_parameters": "the frozen groups determine it",
    "ddp_timeout": "the processes have begun. Use distributed.timeout=",
    "deepspeed": "it keeps optimizer and checkpoints of its own. Use FSDP (docs/hardware.md)",
    "disable_tqdm": "the progress bar is this package's",
    "do_eval": "method.validation_size=0 holds nothing out",
    "do_predict": "the trained model answers task=",
    "do_train": "it is the training that trains",
    "enable_jit_checkpoint": f"{_RESUMING}. Use method.save_steps=",
    "eval_accumulation_steps": _EVALUATION,
    "eval_do_concat_batches": _EVALUATION,
    "eval_use_gather_object": _EVALUATION,
    "fp16": "a gradient that overflows ends the training. Use dtype=bfloat16",
    "fp16_full_eval": _EVALUATION,
    "fsdp": _FSDP,
    "fsdp_config": _FSDP,
    "greater_is_better": "the one validation metric is a loss",
    "hub_token": "a secret belongs in the environment: HF_TOKEN",
    "ignore_data_skip": f"{_RESUMING}, with the rows that are left",
    "include_for_metrics": _EVALUATION,
    "label_names": _OWN_ROWS,
    "length_column_name": _OWN_ROWS,
    "liger_kernel_config": "see use_liger_kernel",
    "local_rank": "torchrun sets it",
    "logging_nan_inf_filter": "a loss that is NaN ends the training",
    "logging_strategy": "the log has a line every logging_steps",
    "metric_for_best_model": "the one validation metric is the loss",
    "optim_target_modules": "the optimizers that read it choose parameters, past the frozen groups",
    "output_dir": "it is the training's folder. Use output_dir=",
    "parallelism_config": _PROCESSES,
    "per_device_eval_batch_size": _EVALUATION,
    "prediction_loss_only": _EVALUATION,
    "remove_unused_columns": _OWN_ROWS,
    "restore_callback_states_from_checkpoint": _RESUMING,
    "resume_from_checkpoint": _RESUMING,
    "save_only_model": f"{_RESUMING}, which needs the optimizer",
    "save_strategy": f"{_RESUMING}. Use method.save_steps=",
    "seed": "it is a key of the run. Use seed=",
    "skip_memory_metrics": "training.json has the memory of each phase",
    "use_cache": "a training reads no cache",
    "use_cpu": "it is a key of the run. Use device=cpu",
    "use_liger_kernel": "it replaces the MoE blocks whose routers are read here",
}
"""The fields that no training takes, with the reason."""

NOT_WEIGHTS = frozenset(
    {
        "activation_checkpointing",
        "activation_checkpointing_kwargs",
        "dataloader_in_order",
        "dataloader_multiprocessing_context",
        "dataloader_num_workers",
        "dataloader_persistent_workers",
        "dataloader_pin_memory",
        "dataloader_prefetch_factor",
        "ddp_broadcast_buffers",
        "ddp_bucket_cap_mb",
        "ddp_static_graph",
        "debug",
        "hub_always_push",
        "hub_model_id",
        "hub_private_repo",
        "hub_revision",
        "hub_strategy",
        "include_num_input_tokens_seen",
        "log_level",
        "log_level_replica",
        "log_on_each_node",
        "logging_first_step",
        "logging_steps",
        "project",
        "push_to_hub",
        "report_to",
        "run_name",
        "save_on_each_node",
        "save_steps",
        "save_total_limit",
        "torch_empty_cache_steps",
        "trackio_bucket_id",
        "trackio_space_id",
        "trackio_static_space_id",
    }
)
"""The fields that do not determine the weights: reporting, uploading, logging, saving, loading of
rows, and memory. All others are part of the recipe."""

SAMPLING = ("random", "sequential", "group_by_length")
"""Values of `train_sampling_strategy` that act. `batch_rebalance` deals rows out to processes
itself."""
OWN_STEP = ("galore", "apollo", "lomo", "adalomo", "schedule_free")
"""Beginnings of optimizers that choose parameters, update in the backward pass, or have other
weights for the evaluation: they would ignore frozen groups or what is checked before a step."""
NOT_OF_THE_STEP = ("reduce_lr_on_plateau", "greedy")
"""Schedules whose rate is no function of the step."""
ALIASES = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
"""Older names of fields."""
NEEDS = {
    "activation_checkpointing_kwargs": "activation_checkpointing",
    "dataloader_in_order": "dataloader_num_workers",
    "dataloader_multiprocessing_context": "dataloader_num_workers",
    "dataloader_persistent_workers": "dataloader_num_workers",
    "dataloader_prefetch_factor": "dataloader_num_workers",
    "hub_always_push": "push_to_hub",
    "hub_model_id": "push_to_hub",
    "hub_private_repo": "push_to_hub",
    "hub_revision": "push_to_hub",
    "hub_strategy": "push_to_hub",
    "lr_scheduler_kwargs": "lr_scheduler_type",
    "project": "report_to",
    "run_name": "report_to",
    "trackio_bucket_id": "report_to",
    "trackio_space_id": "report_to",
    "trackio_static_space_id": "report_to",
}
"""Fields that have no effect without another one."""
ADAM = {"adam_beta1": "betas", "adam_beta2": "betas", "adam_epsilon": "eps"}
"""Fields of Adam, and the argument of an optimizer to which transformers passes them."""


@dataclass(kw_only=True)
class TrainerConfig(Method.Config):
    """The keys of a method that trains with transformers' Trainer."""

    trainer: dict[str, Any] = field(default_factory=dict)
    """Fields of TrainingArguments that are no key of the method. After the check none of them has
    the value that the training has without it."""

    same_keys: ClassVar[Mapping[str, str]] = {}
    """The method's key for a field of TrainingArguments."""
    trainer_defaults: ClassVar[Mapping[str, Any]] = {}
    """What this training passes to TrainingArguments where no field is given."""
    refused_fields: ClassVar[Mapping[str, str]] = {}
    """The fields that this training does not take in addition to `REFUSED`, with the reason."""

    def __post_init__(self) -> None:
        if self.trainer:
            self._take_fields()
        super().__post_init__()

    def _take_fields(self) -> None:
        """Check `trainer`, and give the fields that are keys of the method to these.

        Raises ConfigError.
        """
        taken: dict[str, Any] = {}
        checked = _checked(self.trainer, self.refused_fields, self.same_keys)
        for name, value in checked.items():
            if name in self.same_keys:
                self._take_key(self.same_keys[name], value, name)
            elif name == "warmup_steps" and hasattr(self, "warmup_ratio"):
                self._take_warmup(value, taken)
            elif name == "bf16" or value != self._default(name):
                taken[name] = value
        self.trainer = taken
        for name, other in NEEDS.items():
            if name in taken and not self._value_of(other):
                raise ConfigError(
                    f"method.trainer.{name} has no effect without method.trainer.{other}. Give "
                    "that, too."
                )

    def _take_warmup(self, value: float, taken: dict[str, Any]) -> None:
        """Give a share of the steps to `warmup_ratio`, and keep a number of steps in `taken`.

        Raises ConfigError if both are given.
        """
        if value < 1:
            self._take_key("warmup_ratio", value, "warmup_steps")
            return
        ratio = getattr(self, "warmup_ratio", None)
        if ratio != type(self).__dataclass_fields__["warmup_ratio"].default:
            raise _same_setting("warmup_steps", value, "warmup_ratio", ratio)
        taken["warmup_steps"] = value

    def check_typed(self, given: Mapping[str, Any], typed: Collection[str]) -> None:
        """Raise ConfigError for a setting that is typed as a key and as a field, differently.

        Args:
            given: the keys of the method before a field became one of them.
            typed: the names of the overrides.
        """
        for name, key in self.same_keys.items():
            is_typed_twice = {f"method.{key}", f"method.trainer.{name}"} <= set(typed)
            if is_typed_twice and given[key] != getattr(self, key):
                raise _same_setting(name, getattr(self, key), key, given[key])

    def _value_of(self, name: str) -> Any:
        """The value of a field, which may be a key of the method; None if it is not given."""
        if name in self.same_keys:
            return getattr(self, self.same_keys[name])
        return self.trainer.get(name)

    def _take_key(self, key: str, value: Any, name: str) -> None:
        """Set a key to the value of its field. Raises ConfigError if it has yet another one."""
        typed = coerce(value, get_type_hints(type(self))[key], f"method.trainer.{name}")
        default = type(self).__dataclass_fields__[key].default
        current = getattr(self, key)
        if current not in (default, typed):
            raise _same_setting(name, value, key, current)
        setattr(self, key, typed)

    def _default(self, name: str) -> Any:
        """The value that the training has if the field is not given."""
        if name in self.trainer_defaults:
            return self.trainer_defaults[name]
        return argument_defaults()[name]

    def steps_of_warmup(self, ratio: float, steps: int) -> int:
        """The steps over which the learning rate rises.

        Args:
            ratio: their share of all steps, if `trainer` has no `warmup_steps`. That is a share,
                too, if it is below 1.
        """
        given = self.trainer.get("warmup_steps", ratio)
        if given < 1:
            return math.ceil(given * steps)
        return min(int(given), steps)

    @property
    def trainer_recipe(self) -> dict[str, Any]:
        """The fields that determine the weights."""
        return {name: value for name, value in self.trainer.items() if name not in NOT_WEIGHTS}

    @property
    def training_arguments(self) -> dict[str, Any]:
        """Arguments of TrainingArguments: the defaults of this training, and the given fields."""
        return {**self.trainer_defaults, **self.trainer}


def _same_setting(name: str, value: Any, key: str, other_value: Any) -> ConfigError:
    return ConfigError(
        f"method.trainer.{name}={value} and method.{key}={other_value} are the same setting. Give "
        "one of them."
    )


def argument_defaults() -> dict[str, Any]:
    """The fields of TrainingArguments with their defaults, None for one that is made."""
    hide_kernel_messages()
    from transformers import TrainingArguments

    defaults = {}
    for item in fields(TrainingArguments):
        defaults[item.name] = None if item.default is MISSING else item.default
    return defaults


def _checked(
    given: Mapping[str, Any], refused_fields: Mapping[str, str], same_keys: Mapping[str, str]
) -> dict[str, Any]:
    """The fields by their newer names, their values in the types of TrainingArguments.

    A field of `same_keys` keeps its value as it is. The key of the method checks its type.

    Raises ConfigError for an unknown field, a refused one, and a value of another type.
    """
    known = list(argument_defaults())
    from transformers import TrainingArguments

    hints = get_type_hints(TrainingArguments)
    refused = {**REFUSED, **refused_fields}
    for alias, newer_name in ALIASES.items():
        if newer_name in refused:
            refused[alias] = refused[newer_name]
    checked: dict[str, Any] = {}
    for typed_name, value in given.items():
        check_name(f"method.trainer.{typed_name}", known, refused, PAGE)
        name = ALIASES.get(typed_name, typed_name)
        if name in checked and checked[name] != value:
            [older] = [alias for alias, newer in ALIASES.items() if newer == name]
            raise ConfigError(
                f"method.trainer has {older} and {name}, which are the same field. Give one."
            )
        if name in same_keys:
            checked[name] = value
        else:
            checked[name] = library_value(f"method.trainer.{name}", value, hints[name])
    _check_choices(checked)
    return checked


def _check_choices(checked: Mapping[str, Any]) -> None:
    """Raise ConfigError for an optimizer, a schedule or an order of rows that would not act."""
    optimizer = checked.get("optim")
    if isinstance(optimizer, str):
        check_optimizer("method.trainer.optim", optimizer)
    schedule = checked.get("lr_scheduler_type")
    if schedule in NOT_OF_THE_STEP:
        raise ConfigError(
            f"method.trainer.lr_scheduler_type={schedule}: its rate is no function of the step, "
            "which the rates of phases and routers multiply. Use another one."
        )
    one_of(
        "method.trainer.train_sampling_strategy", checked.get("train_sampling_strategy"), SAMPLING
    )


def check_optimizer(key: str, name: str) -> None:
    """Raise ConfigError for an optimizer that does not keep to frozen groups and checked steps."""
    if name.startswith(OWN_STEP):
        raise ConfigError(
            f"{key}={name}: it chooses the parameters itself or updates them in the backward pass, "
            "past the frozen groups and the check of losses. Use another optimizer."
        )
