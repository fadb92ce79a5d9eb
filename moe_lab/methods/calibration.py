"""`method=calibration`: the base model with all logits multiplied by one number before the softmax.

It is the control for every gain in perplexity. A mean over routes is less confident than one route,
and so is a softmax at a higher temperature, which costs nothing (temperature scaling, Guo et al.,
2017). Greedy answers are those of the base model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moe_lab.config.validators import PositiveFloat, UserPath
from moe_lab.errors import ConfigError
from moe_lab.methods.method import Method
from moe_lab.methods.tunable_method import TemperatureMethod

if TYPE_CHECKING:
    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.models.facts import ModelFacts


class Calibration(TemperatureMethod):
    """One logit scale for all tokens, with any causal language model."""

    required_routing = "none"
    expert_metrics = "all"
    tunings = ("scale",)
    profile_key = "logit_scale"

    @dataclass(kw_only=True)
    class Config(Method.Config):
        name: str = "calibration"
        logit_scale: PositiveFloat | UserPath = 1.0
        """1 / softmax temperature, or the path of a profile, which `tuning=scale` writes."""

    def __init__(self, config: Any):
        super().__init__(config)
        if self.profile is not None and self.profile.calibrated_scale is None:
            raise ConfigError(
                f"method.logit_scale={config.logit_scale} has none of the base model. Use "
                "tuning=scale."
            )

    @property
    def logit_scale(self) -> float:
        """The given scale, or the base model's in the profile."""
        if self.profile is None:
            return float(self.config.logit_scale)
        assert self.profile.calibrated_scale is not None
        return self.profile.calibrated_scale

    def resolved(self, facts: ModelFacts) -> dict[str, Any]:
        return {"logit_scale": self.logit_scale}

    def temperatures(self, moe_layers: int) -> list[float]:
        """No MoE layer has noise."""
        return [0.0] * moe_layers

    def first_noisy(self, moe_layers: int) -> int:
        return 0

    def ensemble(self, temperatures: Sequence[float], first_noisy: int, seed: int) -> Ensemble:
        """The base model at this scale.

        It has no noise, so temperatures and seed have no effect.
        """
        from moe_lab.engine.forward.ensemble import Ensemble

        return Ensemble(logit_scale=self.logit_scale)

    def planned_ensemble(self) -> Ensemble:
        return self.ensemble([], 0, 0)

    def comparisons(self, greedy: bool) -> dict[str, tuple[Any, list[str]]]:
        return {}

    @property
    def tuning_block(self) -> dict[str, Any]:
        """A profile of RoE has temperatures, too, which this method does not use."""
        from moe_lab.engine.forward.ensemble import at_bound

        block = super().tuning_block
        if self.profile is not None:
            block["tuning"]["at_bound"] = ["logit_scale"] if at_bound(self.logit_scale) else []
        return block
