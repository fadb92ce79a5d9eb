"""`method=top-k`: another fixed number of experts for every token, compared with the model's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moe_lab.config.validators import at_least
from moe_lab.methods.expert_counts import check_count, experts_per_token, most_experts
from moe_lab.methods.method import Context
from moe_lab.methods.tuned_settings import Settings, TunedSettings

if TYPE_CHECKING:
    from moe_lab.methods.policy_lm import CountingLM
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.load import LoadedModel


class TopK(TunedSettings):
    """The k experts with the largest scores, with weights of the family's own rule."""

    interventions = False
    open_ended = ("k",)

    @dataclass(kw_only=True)
    class Config(TunedSettings.Config):
        """Keys of `conf/method/top-k.yaml`."""

        name: str = "top-k"
        k: int | None = None
        """Experts per token; null: twice the model's own number, as far as there are so many."""

        def __post_init__(self) -> None:
            at_least("method.k", self.k, 1)

    def k(self, facts: ModelFacts) -> int:
        """Experts per token."""
        doubled = min(2 * facts.top_k, most_experts(facts))
        return doubled if self.config.k is None else self.config.k

    def check(self, facts: ModelFacts) -> None:
        check_count("k", self.k(facts), facts)

    def grid(self, facts: ModelFacts) -> list[Settings]:
        """The base model, then every other number up to twice its own."""
        counts = range(1, min(2 * facts.top_k, most_experts(facts)) + 1)
        grid: list[Settings] = [{"k": facts.top_k}]
        return grid + [{"k": count} for count in counts if count != facts.top_k]

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        """With the number in the place of null."""
        return super().identity(facts) | {"k": self.k(facts)}

    @contextmanager
    def open(self, model: LoadedModel, context: Context) -> Iterator[CountingLM]:
        from moe_lab.methods.policy_lm import with_experts
        from moe_lab.routing.dynamic import TopP

        with with_experts(model, TopP(1.0, self.k(model.facts)), context.config) as lm:
            yield lm

    def report(
        self, facts: ModelFacts, counters: Mapping[str, int], session_info: Mapping[str, Any]
    ) -> dict[str, Any]:
        block = {"k": self.k(facts), "experts_per_token": experts_per_token(counters)}
        return self.tuning_block | {"top_k": block}
