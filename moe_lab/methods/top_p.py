"""`method=top-p`: dynamic routing (Huang et al. 2024, arXiv 2403.07652).

A token takes the smallest set of experts whose router probabilities reach p, and at most k_max experts. A token that
the router is unsure of takes more experts than others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moe_lab.config.validators import at_least
from moe_lab.errors import ConfigError
from moe_lab.methods.expert_counts import check_count, experts_per_token, most_experts
from moe_lab.methods.method import Context
from moe_lab.methods.tuned_settings import Settings, TunedSettings

if TYPE_CHECKING:
    from moe_lab.methods.policy_lm import CountingLM
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.load import LoadedModel

TENTHS = range(1, 10)
"""Of p in `tuning=grid`."""


class TopP(TunedSettings):
    """As many experts for each token as reach a share of the router's probabilities."""

    interventions = False

    @dataclass(kw_only=True)
    class Config(TunedSettings.Config):
        """Keys of `conf/method/top-p.yaml`."""

        name: str = "top-p"
        p: float = 0.4
        k_max: int | None = None
        """The most experts of a token; null: all that the router may choose."""

        def __post_init__(self) -> None:
            if not 0 < self.p <= 1:
                raise ConfigError(f"method.p={self.p}: must be a number above 0 and at most 1.")
            at_least("method.k_max", self.k_max, 1)

    def most(self, facts: ModelFacts) -> int:
        """The most experts of a token."""
        return most_experts(facts) if self.config.k_max is None else self.config.k_max

    def check(self, facts: ModelFacts) -> None:
        check_count("k_max", self.most(facts), facts)

    def grid(self, facts: ModelFacts) -> list[Settings]:
        """The base model, then p from 0.1 to 0.9."""
        return [
            {"p": 1.0, "k_max": facts.top_k},
            *({"p": p / 10, "k_max": self.most(facts)} for p in TENTHS),
        ]

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        """With the number of experts in the place of null."""
        return super().identity(facts) | {"k_max": self.most(facts)}

    @contextmanager
    def open(self, model: LoadedModel, context: Context) -> Iterator[CountingLM]:
        from moe_lab.methods.policy_lm import with_experts
        from moe_lab.routing.dynamic import TopP as Policy

        with with_experts(model, Policy(self.config.p, self.most(model.facts)), context.config) as lm:
            yield lm

    def report(
        self, facts: ModelFacts, counters: Mapping[str, int], session_info: Mapping[str, Any]
    ) -> dict[str, Any]:
        settings = {"p": self.config.p, "k_max": self.most(facts)}
        return self.tuning_block | {"top_p": settings | {"experts_per_token": experts_per_token(counters)}}
