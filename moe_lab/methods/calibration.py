"""`method=calibration`: the base model with all logits multiplied by one number before the softmax.

It is the control for every gain in perplexity. A mean over routes is less confident than one route, and so is a softmax
at a higher temperature, which costs nothing (temperature scaling, Guo et al., 2017). Greedy answers are those of the
base model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from moe_lab.config.validators import above_zero
from moe_lab.errors import ConfigError
from moe_lab.methods.base import ensemble_lm
from moe_lab.methods.method import Context, Method
from moe_lab.methods.profile import Profile, read_profile

if TYPE_CHECKING:
    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.engine.lm import EngineLM
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.load import LoadedModel


class Calibration(Method):
    """One logit scale for all tokens, with any causal language model."""

    needs_router = False
    per_token = False
    own_routing = True
    changes_greedy = False
    tunings = ("scale",)

    @dataclass(kw_only=True)
    class Config:
        """Keys of `conf/method/calibration.yaml`."""

        name: str = "calibration"
        logit_scale: float | str = 1.0
        """1 / softmax temperature, or the path of a profile, which `tuning=scale` writes."""

        def __post_init__(self) -> None:
            if not isinstance(self.logit_scale, str):
                above_zero("method.logit_scale", self.logit_scale)

    def __init__(self, config: Any):
        super().__init__(config)
        path = config.logit_scale
        if isinstance(path, str):
            self.profile = read_profile(path, "method.logit_scale")
            if self.profile.calibrated_scale is None:
                raise ConfigError(
                    f"method.logit_scale={path}: this study has not measured the scale of the base model.\n"
                    "Use a profile of tuning=scale, or of a study of perplexity."
                )

    @property
    def logit_scale(self) -> float:
        """The given scale, or the base model's in the profile."""
        if self.profile is None:
            return float(self.config.logit_scale)
        assert self.profile.calibrated_scale is not None
        return self.profile.calibrated_scale

    def with_profile(self, path: str) -> Config:
        """The configuration with the scale of the profile at `path`."""
        return replace(self.config, logit_scale=path)

    def temperatures(self, moe_layers: int) -> list[float]:
        """No MoE layer has noise."""
        return [0.0] * moe_layers

    def first_noisy(self, moe_layers: int) -> int:
        return 0

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        """`logit_scale` resolved to a number."""
        return super().identity(facts) | {
            "logit_scale": self.logit_scale,
            "study": self.profile.study if self.profile else None,
        }

    def ensemble(self, temperatures: Sequence[float], first_noisy: int, seed: int) -> Ensemble:
        """The base model at this scale. It has no noise, so temperatures and seed have no effect."""
        from moe_lab.engine.forward.ensemble import Ensemble

        return Ensemble(logit_scale=self.logit_scale)

    @contextmanager
    def open(self, model: LoadedModel, context: Context) -> Iterator[EngineLM]:
        yield ensemble_lm(model, context, self.ensemble([], 0, 0))

    def report(
        self, facts: ModelFacts, counters: Mapping[str, int], session_info: Mapping[str, Any]
    ) -> dict[str, Any]:
        block = self.tuning_block
        if self.profile is not None:
            from moe_lab.engine.forward.ensemble import at_bound

            # a profile of RoE has temperatures, too, which this method does not use
            block["tuning"]["at_bound"] = ["logit_scale"] if at_bound(self.logit_scale) else []
        return block | {"calibration": {"logit_scale": self.logit_scale}}


def calibrated_control(profile: Profile | None, path: str) -> dict[str, tuple[Any, list[str]]]:
    """The base model at its best logit scale, as `Method.comparisons` returns it.

    Empty without a profile of a study that measured this scale.

    Args:
        path: the file of the profile.
    """
    if profile is None or profile.calibrated_scale is None:
        return {}
    overrides = ["method=calibration", f"method.logit_scale={path}"]
    return {"calibration": (Calibration.Config(logit_scale=path), overrides)}
