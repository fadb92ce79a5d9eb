"""The keys `method.lora.*` of a fine-tuning, with the names and the defaults of peft's `LoraConfig`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from moe_lab.config.validators import at_least
from moe_lab.errors import ConfigError

ALL_LINEAR = "all-linear"
"""peft's name for every linear module but the output head."""
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
"""The names of attention's linear modules in most families."""


@dataclass(frozen=True, kw_only=True)
class Lora:
    """A LoRA adapter; with `r=None` there is none, and the weights of the model are trained."""

    r: int | None = None
    """The rank."""
    lora_alpha: int = 8
    """The update of a weight is lora_alpha / r times B A."""
    lora_dropout: float = 0.0
    target_modules: str | list[str] = field(default_factory=lambda: list(ATTENTION))
    """Names of modules, or the ends of their names; a text other than `ALL_LINEAR` is a regular expression."""
    target_parameters: list[str] | None = None
    """Names of parameters, or the ends of their names: experts and routers that are no linear modules."""
    use_rslora: bool = False
    """Whether the update is scaled by lora_alpha / sqrt(r) instead."""

    def __post_init__(self) -> None:
        at_least("method.lora.r", self.r, 1)
        at_least("method.lora.lora_alpha", self.lora_alpha, 1)
        at_least("method.lora.lora_dropout", self.lora_dropout, 0)
        if not self.lora_dropout < 1:
            raise ConfigError(f"method.lora.lora_dropout={self.lora_dropout}: must be below 1.")
        if self.r is None and self.given:
            key = self.given[0]
            raise ConfigError(
                f"method.lora.{key}={getattr(self, key)} has no effect without a rank. Give method.lora.r=, too."
            )
        if not self.target_modules and not self.target_parameters:
            raise ConfigError(
                "method.lora.target_modules and method.lora.target_parameters are both empty: nothing is trained. "
                "Give one of them."
            )
        if self.target_parameters and self.lora_dropout:
            raise ConfigError(
                f"method.lora.lora_dropout={self.lora_dropout}: peft has no dropout for target_parameters. Leave one "
                "of them out."
            )

    @property
    def given(self) -> list[str]:
        """The keys with another value than their default."""
        return [
            each.name
            for each in fields(self)
            if getattr(self, each.name)
            != (list(ATTENTION) if each.name == "target_modules" else each.default)
        ]
