"""The keys of `method=finetune-freeze` (MoE-Bench's Table 1), and the recipe of its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from moe_lab.config.library_logs import hide_kernel_messages
from moe_lab.config.validators import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UserPath,
    one_of,
)
from moe_lab.errors import ConfigError
from moe_lab.methods.data_files import is_generated
from moe_lab.methods.early_stopping import checked_early_stopping
from moe_lab.methods.finetune_freeze.adapter import NOT_MERGED, checked_peft
from moe_lab.methods.finetune_freeze.phases import Phase, boundaries, phases_of
from moe_lab.methods.training_arguments import TrainerConfig, check_optimizer
from moe_lab.models.distributed import num_processes

EIGHT_BIT = "adamw_torch_8bit"
"""torchao's AdamW with moments in 8 bits. With it weights and gradients are in bfloat16,
with stochastic rounding."""
ADAMW = ("adamw_torch", "adamw_torch_fused", EIGHT_BIT)
"""Optimizers that are not looked up in transformers, whose import takes seconds."""
NO_END = (
    "the chat template has no token that ends an answer, so the model is not taught to stop: its "
    "answers go on to the length limit. Another template: model.tokenizer="
)
REFERENCE = "reference"
"""The data set of C3PO's reference questions for the evaluated task."""
TOY_VALIDATION_SIZE = 100
"""Default number of validation conversations of a generated data set."""
STEP_SIZE = 4
"""Default number of conversations of an optimizer step: one per pass, or for a generated data set,
whose conversations are short, all in one pass."""
RECIPE = (
    "learning_rate",
    "router_lr",
    "router_aux_loss_coef",
    "partners",
    "epochs",
    "max_steps",
    "length",
    "warmup_ratio",
    "weight_decay",
    "optimizer",
)
"""Keys that determine the weights as they are typed."""


def empty_answers_note(count: int, what: str = "training") -> str:
    """What a plan, a run and its results say about answers without text."""
    return f"answers without text in the {what} data, which are not trained on: {count:,}"


@dataclass(kw_only=True)
class FinetuneConfig(TrainerConfig):
    """The keys of `conf/method/finetune-freeze.yaml`.

    The numbers are those of MoE-Bench's Table 1.
    """

    name: str = "finetune-freeze"
    schedule: str = "none"
    phases: list[dict[str, Any]] | None = None
    dataset: UserPath | dict[str, Any] = "toy"
    dataset_size: PositiveInt | None = None
    reference: str | list[str] | None = None
    reference_size: PositiveInt | None = None
    """As in method=c3po, with `dataset=reference`."""
    validation_size: NonNegativeInt | None = None
    learning_rate: PositiveFloat = 2e-5
    router_lr: PositiveFloat | None = None
    router_aux_loss_coef: NonNegativeFloat = 0.0
    partners: NonNegativeInt | None = None
    """T of C2R: each token trains and is evaluated with its first expert and partners of it;
    null: no constraint."""
    profile: UserPath | None = None
    epochs: PositiveInt = 3
    max_steps: PositiveInt | None = None
    batch_size: PositiveInt | None = None
    gradient_accumulation: PositiveInt | None = None
    length: PositiveInt = 2048
    warmup_ratio: NonNegativeFloat = 0.03
    weight_decay: NonNegativeFloat = 0.0
    optimizer: str = "adamw_torch"
    """`optim` of transformers' TrainingArguments."""
    activation_checkpointing: bool = False
    save_steps: PositiveInt = 250
    compare_with_full: bool = True
    early_stopping: dict[str, Any] = field(default_factory=dict)
    """Arguments of transformers' EarlyStoppingCallback; empty: the training has all its steps."""
    peft: dict[str, Any] = field(default_factory=dict)
    """Fields of a configuration of peft; empty: the weights are trained."""
    merge_adapter: bool = False
    """Whether the trained adapter is merged into the weights for the evaluation."""

    same_keys: ClassVar[Mapping[str, str]] = {
        "learning_rate": "learning_rate",
        "num_train_epochs": "epochs",
        "max_steps": "max_steps",
        "per_device_train_batch_size": "batch_size",
        "gradient_accumulation_steps": "gradient_accumulation",
        "weight_decay": "weight_decay",
        "optim": "optimizer",
        "activation_checkpointing": "activation_checkpointing",
        "save_steps": "save_steps",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        phases_of(self.schedule, self.phases)  # raises ConfigError for wrong phases
        self._check_reference()
        self._check_optimizer()
        self._check_evaluation()
        self.peft = checked_peft(self.peft)
        if self.merge_adapter and not self.peft:
            raise ConfigError("method.merge_adapter=true has no effect without method.peft.")
        if self.merge_adapter and self.peft["peft_type"] in NOT_MERGED:
            raise ConfigError(
                f"method.merge_adapter=true: peft does not merge {self.peft['peft_type']} into "
                "weights. Leave it out."
            )
        if self.warmup_ratio >= 1:
            raise ConfigError(f"method.warmup_ratio={self.warmup_ratio}: must be below 1.")
        if self.profile is not None and self.partners is None:
            raise ConfigError(
                f"method.profile={self.profile} has no effect without method.partners=. Give that, "
                "too."
            )

    def _check_reference(self) -> None:
        """Raise ConfigError for keys of the reference set, or of conversations, without effect."""
        if self.dataset == REFERENCE:
            if self.partners is not None and self.profile is None:
                raise ConfigError(
                    "method.partners counts conversations, and method.dataset=reference has none. "
                    "Give method.profile=."
                )
            return
        for key in ("reference", "reference_size"):
            if getattr(self, key) is not None:
                raise ConfigError(
                    f"method.{key} has no effect without method.dataset={REFERENCE}. "
                    "Give that, too."
                )

    def check_references(self, count: int) -> None:
        """Raise ConfigError if no reference question is left to train on.

        Args:
            count: the questions that are not held out.
        """
        if count <= 0:
            raise ConfigError(
                f"method.dataset={REFERENCE}: method.validation_size={self.held_out} holds out all "
                "reference questions. Hold out fewer."
            )

    def _check_optimizer(self) -> None:
        """Raise ConfigError for an optimizer that transformers does not have."""
        if self.optimizer in ADAMW:
            if self.optimizer == EIGHT_BIT and "optim_args" in self.trainer:
                raise ConfigError(
                    f"method.trainer.optim_args: method.optimizer={EIGHT_BIT} has its own, "
                    "bf16_stochastic_round=True. Leave them out."
                )
            return
        hide_kernel_messages()
        from transformers.training_args import OptimizerNames

        one_of("method.optimizer", self.optimizer, [name.value for name in OptimizerNames])
        check_optimizer("method.optimizer", self.optimizer)

    def _check_evaluation(self) -> None:
        """Raise ConfigError for settings of the validation that have no effect."""
        self.early_stopping = checked_early_stopping(self.early_stopping)
        strategy = self.trainer.get("eval_strategy")
        if strategy == "epoch":  # the recipe's
            del self.trainer["eval_strategy"]
            strategy = None
        if strategy != "steps":
            for name in ("eval_steps", "eval_delay", "load_best_model_at_end"):
                if name in self.trainer:
                    raise ConfigError(
                        f"method.trainer.{name} has no effect without "
                        "method.trainer.eval_strategy=steps: else the validation loss is taken at "
                        "each epoch's end."
                    )
        needs_validation = ["method.early_stopping"] if self.early_stopping else []
        for name in ("eval_strategy", "eval_on_start"):
            if name in self.trainer:
                needs_validation.append(f"method.trainer.{name}")
        if needs_validation and not self.held_out:
            raise ConfigError(
                f"{needs_validation[0]} needs validation conversations. Hold some out: "
                "method.validation_size=100."
            )

    @property
    def held_out(self) -> int:
        """Number of validation conversations.

        Those of generated data sets do not reduce the training set.
        """
        if self.validation_size is not None:
            return self.validation_size
        return TOY_VALIDATION_SIZE if is_generated(self.dataset) else 0

    @property
    def names_no_router(self) -> bool:
        """Whether no key is about routers or experts. Then a dense model can be trained, too."""
        if self.router_lr or self.router_aux_loss_coef or self.partners:
            return False
        return not any(phase.frozen for phase in self.all_phases)

    @property
    def all_phases(self) -> tuple[Phase, ...]:
        """The listed phases, or those of the schedule."""
        return phases_of(self.schedule, self.phases)

    @property
    def pass_size(self) -> int:
        """Conversations of a pass."""
        if self.batch_size is not None:
            return self.batch_size
        return STEP_SIZE if is_generated(self.dataset) else 1

    @property
    def step_passes(self) -> int:
        """Passes of an optimizer step, over all processes."""
        passes = self.gradient_accumulation
        if passes is None:
            passes = max(1, STEP_SIZE // self.pass_size)
        return passes * num_processes()

    @property
    def weights_dtype(self) -> str:
        """The dtype of the weights and gradients."""
        return "bfloat16" if self.optimizer == EIGHT_BIT else "float32"

    def steps(self, rows: int) -> int:
        """Optimizer steps on this many rows; the last step of an epoch may be smaller."""
        whole = self.steps_per_epoch(rows) * self.epochs
        return whole if self.max_steps is None else min(whole, self.max_steps)

    def steps_per_epoch(self, rows: int) -> int:
        """Optimizer steps of one pass over this many rows."""
        passes = math.ceil(rows / self.pass_size)
        return math.ceil(passes / self.step_passes)

    def warmup_steps(self, rows: int) -> int:
        """Steps over which the learning rate rises from 0, which is that of the first one,
        as in transformers."""
        return self.steps_of_warmup(self.warmup_ratio, self.steps(rows))

    def check_trains(self, rows: int) -> None:
        """Raise ConfigError for a phase without a step,
        and for a training whose only step has the learning rate 0."""
        self.ends(rows)  # raises ConfigError for a phase without a step
        if self.steps(rows) == 1 and self.warmup_steps(rows):
            raise ConfigError(
                f"method.warmup_ratio={self.warmup_ratio}: the training has one step, and the "
                "warm-up begins with the learning rate 0, so nothing would be trained. Train "
                "longer, or set method.warmup_ratio=0."
            )

    def notes(self, rows: int) -> list[str]:
        """What a plan and a run say about the recipe, a sentence each."""
        if self.ends(rows)[0] > 1 or not self.warmup_steps(rows):
            return []
        return [
            f"phase 1 trains nothing: the warm-up (method.warmup_ratio={self.warmup_ratio}) begins "
            "with the learning rate 0, and the phase has one step. Train longer, or set "
            "method.warmup_ratio=0"
        ]

    def ends(self, rows: int) -> list[int]:
        """The step before which each phase ends. Raises ConfigError for a phase without a step."""
        return boundaries(self.all_phases, self.steps(rows))

    def recipe(self) -> dict[str, Any]:
        """All that determines the weights together with model, data and seed,
        the same for all spellings."""
        recipe = {key: getattr(self, key) for key in RECIPE}
        recipe["phases"] = [asdict(phase) for phase in self.all_phases]
        recipe["batch_size"] = self.pass_size
        recipe["gradient_accumulation"] = self.step_passes
        if self.trainer_recipe:
            recipe["trainer"] = self.trainer_recipe
        if self.early_stopping:
            recipe["early_stopping"] = self.early_stopping
        if self.peft:
            recipe["peft"] = self.peft
        return recipe
