"""The hyperparameters of a fine-tuning (MoE-Bench's Table 1), and the recipe that determines the trained weights."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from moe_lab.config.validators import above_zero, at_least
from moe_lab.errors import ConfigError
from moe_lab.methods.conversations.read import TOY_SIZES
from moe_lab.methods.finetune_freeze.schedule import (
    Phase,
    Rate,
    boundaries,
    label,
    phases_of,
    with_shared_experts,
)
from moe_lab.models.distributed import num_processes

AT_LEAST = {
    **dict.fromkeys(("epochs", "max_steps", "batch_size", "gradient_accumulation", "length"), 1),
    **dict.fromkeys(("dataset_size", "early_stop_patience", "save_steps"), 1),
    **dict.fromkeys(("weight_decay", "router_aux_loss_coef", "validation_size", "warmup_ratio"), 0),
    "routing_noise": 0,
    "partners": 0,
}
ABOVE_ZERO = ("learning_rate", "router_lr")
NOT_WEIGHTS = (
    "name",
    "schedule",
    "phases",
    "freeze_shared_experts",
    "dataset",
    "dataset_size",
    "validation_size",
    "save_steps",
    "compare_with_full",
    "profile",
)
"""Keys that do not determine the weights, or do so as what they resolve to."""
TOY_VALIDATION_SIZE = 100
"""Held-out conversations of a generated data set, where no number is given."""
STEP_SIZE = 4
"""Conversations of an optimizer step, where nothing is given: one by one, or those of a generated data set, which are
short, in one pass."""


@dataclass(kw_only=True)
class FinetuneConfig:
    """The keys of `conf/method/finetune-freeze.yaml`; numbers are those of MoE-Bench's Table 1."""

    name: str = "finetune-freeze"
    schedule: str = "none"
    phases: list[dict[str, Any]] | None = None
    freeze_shared_experts: bool = False
    dataset: str = "toy"
    dataset_size: int | None = None
    validation_size: int | None = None
    learning_rate: float = 2e-5
    router_lr: float | None = None
    router_aux_loss_coef: float = 0.0
    routing_noise: float = 0.0
    routing_noise_schedule: Literal["constant", "linear"] = "constant"
    partners: int | None = None
    """T of C2R: each token trains and is evaluated with its first expert and partners of it; null: no constraint."""
    profile: str | None = None
    epochs: int = 3
    max_steps: int | None = None
    batch_size: int | None = None
    gradient_accumulation: int | None = None
    length: int = 2048
    warmup_ratio: float = 0.03
    weight_decay: float = 0.0
    early_stop_patience: int | None = None
    save_steps: int = 250
    compare_with_full: bool = True

    def __post_init__(self) -> None:
        for key, least in AT_LEAST.items():
            at_least(f"method.{key}", getattr(self, key), least)
        for key in ABOVE_ZERO:
            above_zero(f"method.{key}", getattr(self, key))
        if not self.warmup_ratio < 1:
            raise ConfigError(f"method.warmup_ratio={self.warmup_ratio}: must be below 1.")
        phases_of(self.schedule, self.phases)
        if self.profile is not None and self.partners is None:
            raise ConfigError(
                f"method.profile={self.profile} is read with method.partners= alone. Give that too."
            )
        if self.partners is not None and self.routing_noise:
            raise ConfigError(
                f"method.partners={self.partners} and method.routing_noise={self.routing_noise} both change the "
                "routers' choice in training. Leave one of them out."
            )
        if self.early_stop_patience and not self.held_out:
            raise ConfigError(
                "method.early_stop_patience waits for a lower validation loss. Hold conversations out: "
                "method.validation_size=100"
            )

    @property
    def held_out(self) -> int:
        """Number of held-out conversations. Generated data sets hold out other ones than are trained on, at no cost."""
        if self.validation_size is None:
            return TOY_VALIDATION_SIZE if self.dataset in TOY_SIZES else 0
        return self.validation_size

    def recipe(self) -> Recipe:
        """The keys that determine the weights."""
        own = {key: value for key, value in asdict(self).items() if key not in NOT_WEIGHTS}
        own["batch_size"] = self.batch_size or (STEP_SIZE if self.dataset in TOY_SIZES else 1)
        passes = self.gradient_accumulation or max(1, STEP_SIZE // own["batch_size"])
        own["gradient_accumulation"] = passes * num_processes()
        phases = phases_of(self.schedule, self.phases)
        return Recipe(phases=with_shared_experts(phases) if self.freeze_shared_experts else phases, **own)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that determines the weights beside model, data and seed."""

    phases: tuple[Phase, ...]
    learning_rate: float
    router_lr: float | None
    router_aux_loss_coef: float
    routing_noise: float
    """Highest temperature of the noise on the routers' choice; 0: none."""
    routing_noise_schedule: str
    epochs: int
    max_steps: int | None
    batch_size: int
    gradient_accumulation: int
    """Passes of an optimizer step, those of all processes together."""
    length: int
    warmup_ratio: float
    weight_decay: float
    partners: int | None
    """T: the partners of each expert in C2R's constraint; None: none."""
    early_stop_patience: int | None
    """Epochs in a row without a lower validation loss that end the training; its best epoch is kept."""

    @property
    def label(self) -> str:
        """The schedule as the paper writes it: N→R."""
        return label(self.phases)

    @property
    def step_size(self) -> int:
        """Most conversations of an optimizer step."""
        return self.batch_size * self.gradient_accumulation

    def steps(self, rows: int) -> int:
        """Optimizer steps on so many rows; the last ones of an epoch may be a smaller step."""
        whole = self.steps_per_epoch(rows) * self.epochs
        return whole if self.max_steps is None else min(whole, self.max_steps)

    def steps_per_epoch(self, rows: int) -> int:
        """Optimizer steps in which so many rows are seen once."""
        return math.ceil(math.ceil(rows / self.batch_size) / self.gradient_accumulation)

    def ends(self, rows: int) -> list[int]:
        """The step before which each phase ends. Raises ConfigError where a phase has no step."""
        return boundaries(self.phases, self.steps(rows))

    def rate(self, rows: int, *, router: bool) -> Rate:
        """The learning rate of the routers, or of all other parameters. `router_lr` holds in all phases."""
        own = self.router_lr if router else None
        peaks = [own or phase.lr or self.learning_rate for phase in self.phases]
        steps = self.steps(rows)
        return Rate(
            steps=steps,
            warmup_steps=math.ceil(self.warmup_ratio * steps),
            learning_rate=own or self.learning_rate,
            peaks=tuple(peaks),
            ends=tuple(self.ends(rows)),
        )

    def identity(self) -> dict[str, Any]:
        """The recipe as plain values, the same for all spellings of one schedule.

        Without noise, or without a constraint, no key tells of it.
        """
        unread = set() if self.routing_noise else {"routing_noise", "routing_noise_schedule"}
        unread |= {"partners"} if self.partners is None else set()
        return {key: value for key, value in asdict(self).items() if key not in unread}
