"""The search of a logit scale alone (tuning=scale)."""

from dataclasses import dataclass
from typing import Any

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.models.facts import ModelFacts
from moe_lab.runs.tuning.presets import paper_model, preset
from moe_lab.runs.tuning.search import TrialPoint
from moe_lab.runs.tuning.temperatures import EnsembleSearch


@dataclass(frozen=True, kw_only=True)
class LogitScale(EnsembleSearch):
    """One trial, at the method's own temperatures.

    It has no parameters: one pass over the texts counts all scales.
    """

    given: list[float]
    """The method's temperatures, one per MoE layer."""
    logit_scale: bool = True

    reuse = False

    @property
    def begins_with_base(self) -> bool:
        """Whether the method's temperatures are all 0."""
        return not any(self.given)

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """Empty: a trial has no parameters."""
        return {}

    def fixed(self, number: int) -> dict[str, float] | None:
        """No parameters for trial 0, the only one."""
        return {} if number == 0 else None

    def prunes(self, number: int) -> bool:
        """Never."""
        return False

    def temperatures(self, trial: TrialPoint) -> list[float]:
        """The method's own."""
        return self.given


def logit_scale_search(config: Config, facts: ModelFacts) -> LogitScale:
    """The search of `config.tuning`. Raises ConfigError for settings that contradict it."""
    method: Any = get_method(config.method.name)(config.method)
    if method.config.logit_scale not in (None, 1):
        raise ConfigError(
            f"method.logit_scale={method.config.logit_scale}: tuning=scale searches it. "
            "Leave one out."
        )
    usual = preset(config.task.category, paper_model(facts))
    return LogitScale(
        method=method,
        tuning="scale",
        metric="perplexity",
        n_trials=1,
        num_samples=config.tuning.num_samples or usual.num_samples,
        moe_layers=facts.moe_layers,
        skip_layers=method.first_noisy(facts.moe_layers),
        given=method.temperatures(facts.moe_layers),
    )
