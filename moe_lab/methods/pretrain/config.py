"""The keys of `method=pretrain`: a design and its recipe,
which determine the trained weights with data and seed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from moe_lab.config.validators import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UserPath,
    at_least,
)
from moe_lab.errors import ConfigError
from moe_lab.methods.training_arguments import TrainerConfig

AUX_LOSS = 0.1
"""The default coefficient of equation 2, which has no factor E.
For 8 experts it is 0.0125 in transformers' formula."""
_ROUTES_AGAIN = "it routes tokens again in the backward pass, and a design may draw their experts"
_AT_CHECKPOINTS = "the validation loss is taken at every checkpoint. Use method.save_steps="
_PACKED = "the corpus is packed into rows in an order of its own, which seed= determines"
SMALLEST_VOCABULARY = 257
"""All bytes and the end token."""
NOT_WEIGHTS = (
    "name",
    "dataset",
    "dataset_size",
    "validation_rows",
    "save_steps",
    "tokenizer",
    "trainer",
    "vocab_size",
)
"""Keys that do not determine the weights, or do so only through the data and the tokenizer."""
OF_EXPERTS = {
    "experts",
    "experts_per_token",
    "shared_experts",
    "router",
    "capacity_factor",
    "aux_loss",
    "z_loss",
    "bias_rate",
    "device_loss",
    "devices",
    "routing_noise",
}
"""Keys that a dense model does not read."""


def left_out_note(counts: Mapping[str, int]) -> str:
    """What a plan, a run and its results say about documents that are neither trained on nor held
    out."""
    return (
        f"documents left out: {counts['empty']:,} empty ones, "
        f"{counts['duplicates']:,} duplicates of earlier ones"
    )


@dataclass(kw_only=True)
class PretrainConfig(TrainerConfig):
    """The keys of `conf/method/pretrain.yaml`."""

    name: str = "pretrain"
    backbone: Literal["olmoe", "deepseek", "dense"] = "olmoe"
    experts: PositiveInt = 8
    experts_per_token: PositiveInt = 2
    shared_experts: NonNegativeInt = 0
    router: Literal["token", "expert", "word", "sentence", "word-hash"] = "token"
    capacity_factor: PositiveFloat = 1.0
    hidden_size: PositiveInt = 128
    layers: PositiveInt = 4
    heads: PositiveInt = 4
    active_size: PositiveInt = 256
    aux_loss: NonNegativeFloat | None = None
    z_loss: NonNegativeFloat = 1e-3
    bias_rate: NonNegativeFloat = 0.0
    device_loss: NonNegativeFloat = 0.0
    devices: PositiveInt = 4
    routing_noise: NonNegativeFloat = 0.0
    dataset: UserPath | dict[str, Any] = "toy"
    dataset_size: PositiveInt | None = None
    validation_rows: int = 64
    tokenizer: Literal["model", "train"] = "model"
    vocab_size: PositiveInt = 4096
    steps: PositiveInt = 600
    batch_size: PositiveInt = 8
    gradient_accumulation: PositiveInt = 1
    sequence_length: int = 256
    learning_rate: PositiveFloat = 3e-3
    warmup_ratio: NonNegativeFloat = 0.05
    weight_decay: NonNegativeFloat = 0.1
    save_steps: PositiveInt = 200

    same_keys: ClassVar[Mapping[str, str]] = {
        "learning_rate": "learning_rate",
        "max_steps": "steps",
        "per_device_train_batch_size": "batch_size",
        "gradient_accumulation_steps": "gradient_accumulation",
        "weight_decay": "weight_decay",
        "save_steps": "save_steps",
    }
    trainer_defaults: ClassVar[Mapping[str, Any]] = {
        "optim": "adamw_torch_fused",
        "adam_beta2": 0.95,
        "train_sampling_strategy": "sequential",
    }
    refused_fields: ClassVar[Mapping[str, str]] = {
        "activation_checkpointing": _ROUTES_AGAIN,
        "activation_checkpointing_kwargs": _ROUTES_AGAIN,
        "data_seed": _PACKED,
        "eval_delay": _AT_CHECKPOINTS,
        "eval_on_start": _AT_CHECKPOINTS,
        "eval_steps": _AT_CHECKPOINTS,
        "eval_strategy": _AT_CHECKPOINTS,
        "load_best_model_at_end": "designs are compared after the same number of steps",
        "num_train_epochs": "the length is a number of steps. Use method.steps=",
        "train_sampling_strategy": _PACKED,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method.sequence_length", self.sequence_length, 2)  # a target
        at_least("method.validation_rows", self.validation_rows, 2)  # an interval over rows
        at_least("method.vocab_size", self.vocab_size, SMALLEST_VOCABULARY)
        if self.warmup_ratio >= 1:
            raise ConfigError(f"method.warmup_ratio={self.warmup_ratio}: must be below 1.")
        if self.hidden_size % (2 * self.heads):
            raise ConfigError(
                f"method.hidden_size={self.hidden_size} must be a multiple of 2 x "
                f"method.heads={self.heads}."
            )
        if self.backbone != "dense":
            self._check_experts()

    def _check_experts(self) -> None:
        active = self.experts_per_token + self.shared_experts
        share = self.capacity_factor * self.sequence_length * self.experts_per_token / self.experts
        is_balanced = self.aux_loss or self.bias_rate or self.device_loss
        if self.backbone == "deepseek" and self.layers == 1:
            raise ConfigError(
                "method.backbone=deepseek has a dense first layer: method.layers=1 leaves no "
                "experts."
            )
        if self.experts < self.experts_per_token:
            raise ConfigError(
                f"method.experts={self.experts} is fewer than "
                f"method.experts_per_token={self.experts_per_token}."
            )
        if self.active_size % active:
            raise ConfigError(
                f"method.active_size={self.active_size} is not divisible by the {active} experts "
                f"that a token takes. Use a multiple of {active}."
            )
        if self.router == "expert" and share < 1:
            raise ConfigError(
                f"method.router=expert: an expert would take {share:.2f} tokens of a row of "
                f"{self.sequence_length}. Raise method.capacity_factor or method.sequence_length."
            )
        if is_balanced and self.router in ("expert", "word-hash"):
            raise ConfigError(
                f"method.router={self.router} leaves no load to balance: leave method.aux_loss, "
                "method.bias_rate and method.device_loss out."
            )
        if self.routing_noise and self.router != "token":
            raise ConfigError(
                f"method.routing_noise needs method.router=token: method.router={self.router} does "
                "not choose for single tokens."
            )
        if self.device_loss and self.experts % self.devices:
            raise ConfigError(
                f"method.experts={self.experts} is not divisible by method.devices={self.devices}."
            )

    @property
    def expert_size(self) -> int:
        """Width of an expert.

        All designs have the same active parameters, and the same total at equal sparsity.
        """
        return self.active_size // (self.experts_per_token + self.shared_experts)

    @property
    def auxiliary(self) -> float:
        """The coefficient of equation 2."""
        if self.aux_loss is not None:
            return self.aux_loss
        if self.router == "expert" or self.is_hashed or self.bias_rate:
            return 0.0
        return AUX_LOSS

    @property
    def is_hashed(self) -> bool:
        """Whether routers have no parameters, and so no regularizer."""
        return self.router == "word-hash"

    @property
    def label(self) -> str:
        """The granularity as the paper writes it: 2/8, 1/7+1. `dense` for a dense model."""
        if self.backbone == "dense":
            return "dense"
        shared = f"+{self.shared_experts}" if self.shared_experts else ""
        return f"{self.experts_per_token}/{self.experts}{shared}"

    @property
    def regularizers(self) -> str:
        """Names of the terms that balance the load and keep the routers' logits small;
        `-` for none."""
        if self.backbone == "dense":
            return "-"
        weights = {
            "auxiliary loss": self.auxiliary,
            "z-loss": 0 if self.is_hashed else self.z_loss,
            "bias": self.bias_rate,
            "device loss": self.device_loss,
        }
        names = [name for name, weight in weights.items() if weight]
        return " + ".join(names) or "-"

    @property
    def reads_later_tokens(self) -> bool:
        """Whether the routing of a token depends on later ones."""
        return self.router == "expert" and self.backbone != "dense"

    @property
    def unread(self) -> set[str]:
        if self.backbone == "dense":
            return OF_EXPERTS
        read = {
            "capacity_factor": self.router == "expert",
            "devices": self.device_loss > 0,
            "z_loss": not self.is_hashed,
        }
        return {key for key, is_read in read.items() if not is_read}

    @property
    def rows(self) -> int:
        """The number of rows of the whole training."""
        return self.steps * self.batch_size * self.gradient_accumulation

    @property
    def warmup_steps(self) -> int:
        return self.steps_of_warmup(self.warmup_ratio, self.steps)

    def recipe(self) -> dict[str, Any]:
        """The keys that determine the weights, with resolved defaults."""
        keys = asdict(self)
        keys["aux_loss"] = self.auxiliary
        left_out = self.unread.union(NOT_WEIGHTS)
        recipe = {key: value for key, value in keys.items() if key not in left_out}
        if self.trainer_recipe:
            recipe["trainer"] = self.trainer_recipe
        return recipe
