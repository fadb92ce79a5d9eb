"""Methods that change the number of experts that a token takes.

`method=top-k` takes another fixed number of experts for every token. `method=top-p` is dynamic
routing (Huang et al. 2024, arXiv 2403.07652): a token takes the smallest set of experts whose
router probabilities reach p, and at most k_max experts. So a token takes more experts where the
router is unsure.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from moe_lab.config.schema import Config as RunConfig
from moe_lab.config.validators import PositiveInt
from moe_lab.errors import ConfigError
from moe_lab.methods.tunable_method import GridMethod, Settings

if TYPE_CHECKING:
    from moe_lab.models.facts import LoadedModel, ModelFacts
    from moe_lab.routing import Policy

TENTHS = range(1, 10)
"""Values of 10 p in the grid of top-p."""


class ExpertCount(GridMethod):
    """Takes as many experts as reach the share `p` of the router's probabilities,
    and at most `most`.

    With p = 1 every token takes `most` experts. Their weights follow the rule of the router's
    family.
    """

    counted = ("experts_per_token", "chosen_experts", "routing_decisions")
    most_key: ClassVar[str]
    """The key of the largest number of experts of a token; null: the method's default, `most`."""

    @abstractmethod
    def most(self, facts: ModelFacts) -> int:
        """The largest number of experts of a token."""

    def check(self, facts: ModelFacts) -> None:
        """Raises ConfigError for a number of experts that a token of the model cannot take."""
        key = f"method.{self.most_key}={self.most(facts)}"
        most = most_experts(facts)
        if facts.routers and facts.routers.fixed_top_k:
            raise ConfigError(
                f"{key}: {facts.routers.name} models cannot have another number of experts. Use "
                "method=base."
            )
        if not 1 <= self.most(facts) <= most:
            raise ConfigError(
                f"{key}: a token of this model can have 1 to {most} experts of the {facts.experts} "
                "in a layer."
            )

    def resolved(self, facts: ModelFacts) -> dict[str, Any]:
        """The number of experts instead of null."""
        return {self.most_key: self.most(facts)}

    def policy(self, model: LoadedModel, config: RunConfig) -> tuple[Policy, dict[str, Any]]:
        from moe_lab.routing import dynamic

        return dynamic.TopP(getattr(self.config, "p", 1.0), self.most(model.facts)), {}


def most_experts(facts: ModelFacts) -> int:
    """The largest number of experts that a token of the model can take."""
    return facts.most_experts or facts.experts


class TopK(ExpertCount):
    """The k experts with the largest scores."""

    open_ended = ("k",)
    most_key = "k"

    @dataclass(kw_only=True)
    class Config(GridMethod.Config):
        name: str = "top-k"
        k: PositiveInt | None = None
        """Experts per token; null: twice the model's own number, or all if there are fewer."""

    def most(self, facts: ModelFacts) -> int:
        """`k`; null: twice the model's own number, or all that a token can take if there are
        fewer."""
        k: int | None = self.config.k
        if k is not None:
            return k
        return min(2 * facts.top_k, most_experts(facts))

    def grid(self, facts: ModelFacts) -> list[Settings]:
        """The base model, then every other number up to twice the model's own."""
        numbers = range(1, min(2 * facts.top_k, most_experts(facts)) + 1)
        others = [number for number in numbers if number != facts.top_k]
        return [{"k": number} for number in (facts.top_k, *others)]


class TopP(ExpertCount):
    """As many experts for each token as reach a share of the router's probabilities."""

    most_key = "k_max"

    @dataclass(kw_only=True)
    class Config(GridMethod.Config):
        name: str = "top-p"
        p: float = 0.4
        k_max: PositiveInt | None = None
        """The largest number of experts of a token; null: all that the router may choose."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if not 0 < self.p <= 1:
                raise ConfigError(f"method.p={self.p}: must be a number above 0 and at most 1.")

    def most(self, facts: ModelFacts) -> int:
        """`k_max`; null: all that a token can take."""
        return most_experts(facts) if self.config.k_max is None else self.config.k_max

    def grid(self, facts: ModelFacts) -> list[Settings]:
        """The base model, then p from 0.1 to 0.9."""
        most = self.most(facts)
        grid: list[Settings] = [{"p": 1.0, "k_max": facts.top_k}]
        grid += [{"p": tenth / 10, "k_max": most} for tenth in TENTHS]
        return grid
