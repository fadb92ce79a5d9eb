"""`method=roe`: Roster of Experts, the average of n routings of every token (arXiv 2509.17238).

Routing sample 0 of a token is the base model; the other samples route with Gumbel noise
(equation 1). With cache=clean, all samples attend to the clean history, and only the keys and
values of sample 0 are cached (section 2.3). With cache=standard, each sample attends to its own
cache. cache=none is the same, computed again for every token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from moe_lab.config.validators import NonNegativeInt, PositiveFloat, PositiveInt, UserPath
from moe_lab.errors import ConfigError
from moe_lab.methods.method import Method
from moe_lab.methods.tunable_method import TemperatureMethod

if TYPE_CHECKING:
    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.models.facts import ModelFacts


class RoE(TemperatureMethod):
    """An ensemble of n routings of each token."""

    random = True
    profile_key = "temperature"
    counted = ("changed_fraction", "changed_decisions", "noisy_decisions")
    tunings = ("tpe", "random", "uniform", "scale")

    @dataclass(kw_only=True)
    class Config(Method.Config):
        name: str = "roe"
        n: PositiveInt = 32
        temperature: float | list[float] | UserPath = 0.1
        """A number for all MoE layers that are not skipped, a list with an entry for each MoE
        layer, or a profile."""
        skip_layers: NonNegativeInt | None = None
        """L: MoE layers without noise at each end; null: 1 for a number, 0 for a list or a
        profile."""
        cache: Literal["clean", "standard", "none"] = "clean"
        """The history that samples attend to: the clean one, or their own (none: computed again for
        every token)."""
        prefill: Literal["noisy", "clean"] = "noisy"
        """Whether samples with their own histories read the prompt with noise."""
        weights: Literal["clean", "perturbed"] = "clean"
        aggregate: Literal["probabilities", "logits"] = "probabilities"
        include_clean: bool = True
        logit_scale: PositiveFloat | None = None
        """The factor of the log of the averaged distribution; None: the profile's, else 1."""
        noise: Literal["gumbel", "antithetic"] = "gumbel"
        """Independent in all samples, or antithetic in samples 2j-1 and 2j."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.prefill != "noisy" and self.cache == "clean":
                raise ConfigError(
                    f"method.prefill={self.prefill} has no effect with method.cache=clean. Leave "
                    "it out."
                )
            if self.n == 1 and not self.include_clean:
                raise ConfigError(
                    "method.n=1 has only the clean routing sample: leave "
                    "method.include_clean=false out."
                )
            if not isinstance(self.temperature, str):
                _check_temperatures(self.temperature)

    @property
    def logit_scale(self) -> float:
        """The given logit scale, else the profile's."""
        if self.config.logit_scale is not None:
            return float(self.config.logit_scale)
        return self.profile.logit_scale if self.profile else 1.0

    def check(self, facts: ModelFacts) -> None:
        """Raises ConfigError for temperatures, or for perturbed weights, that do not fit the
        model."""
        self.temperatures(facts.moe_layers)  # raises ConfigError for a wrong number of them
        family = facts.routers
        if self.config.weights == "perturbed" and family and not family.chooses_by_logits:
            raise ConfigError(
                f"method.weights=perturbed: routers of {family.name} choose by a "
                f"{family.chosen_by}: leave it out."
            )

    def temperatures(self, moe_layers: int) -> list[float]:
        """One temperature per MoE layer.

        Raises ConfigError if a list of temperatures, or `skip_layers`, does not fit the model.
        """
        temperature = self.config.temperature
        skip = self._skip_layers
        if self.profile is not None:
            temperature = self.profile.temperature
            _check_temperatures(temperature)
        if isinstance(temperature, list):
            if len(temperature) != moe_layers:
                raise ConfigError(
                    f"method.temperature has {len(temperature)} entries; give one for each of "
                    f"{moe_layers} MoE layers."
                )
            if skip and any(temperature[:skip] + temperature[-skip:]):
                raise ConfigError(
                    f"method.skip_layers={skip} contradicts method.temperature. Leave skip_layers "
                    "out."
                )
            return [float(value) for value in temperature]
        if 2 * skip >= moe_layers:
            raise ConfigError(
                f"method.skip_layers={skip} leaves none of the {moe_layers} MoE layers (both "
                "ends). Skip fewer."
            )
        noisy = [float(temperature)] * (moe_layers - 2 * skip)
        return [0.0] * skip + noisy + [0.0] * skip

    @property
    def _skip_layers(self) -> int:
        """`skip_layers`, or its default for the kind of `temperature`."""
        if self.config.skip_layers is not None:
            return self.config.skip_layers
        return 0 if isinstance(self.config.temperature, list | str) else 1

    def first_noisy(self, moe_layers: int) -> int:
        """The first MoE layer with noise, or else the first that is not skipped.

        Samples share all layers before it.
        """
        for layer, temperature in enumerate(self.temperatures(moe_layers)):
            if temperature:
                return layer
        return self._skip_layers

    def planned_ensemble(self) -> Ensemble:
        """The ensemble without its policy: what decides how many tokens it reads."""
        from moe_lab.engine.forward.ensemble import Ensemble

        return Ensemble(
            n=self.config.n,
            cache=self.config.cache,
            prefill=self.config.prefill,
            logit_scale=self.logit_scale,
        )

    def comparisons(self, greedy: bool) -> dict[str, tuple[Any, list[str]]]:
        return {} if self.config.n == 1 else super().comparisons(greedy)

    def with_profile(self, path: str) -> Config:
        return replace(self.config, temperature=path, skip_layers=None)

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        """`temperature` and `skip_layers` resolved to one temperature per layer."""
        identity = super().identity(facts)
        del identity["temperature"]
        del identity["skip_layers"]
        identity["temperatures"] = self.temperatures(facts.moe_layers)
        identity["first_noisy"] = self.first_noisy(facts.moe_layers)
        identity["logit_scale"] = self.logit_scale
        return identity

    def ensemble(self, temperatures: Sequence[float], first_noisy: int, seed: int) -> Ensemble:
        """The ensemble at these temperatures (one per MoE layer)."""
        from moe_lab.engine.forward.ensemble import Ensemble
        from moe_lab.routing import GumbelTopK

        settings = self.config
        routing = None
        if settings.n > 1:
            routing = GumbelTopK(
                temperatures,
                seed,
                settings.weights == "perturbed",
                antithetic=settings.noise == "antithetic",
            )
        return Ensemble(
            n=settings.n,
            routing=routing,
            first_noisy=first_noisy,
            aggregate=settings.aggregate,
            include_clean=settings.include_clean,
            cache=settings.cache,
            prefill=settings.prefill,
            logit_scale=self.logit_scale,
        )

    def reported(self, facts: ModelFacts) -> dict[str, Any]:
        """The keys that have an effect, with the temperature of each MoE layer."""
        reported = {key: getattr(self.config, key) for key in ("n", "cache", "prefill", "weights")}
        if self.logit_scale != 1:
            reported["logit_scale"] = self.logit_scale
        reported["temperatures"] = self.temperatures(facts.moe_layers)
        return reported

    @staticmethod
    def footnotes(block: dict[str, Any]) -> list[str]:
        roe = block["roe"]
        temperatures = roe["temperatures"]
        noisy = [temperature for temperature in temperatures if temperature]
        if not noisy:
            return [
                "roe: temperature 0 in every MoE layer, so that all routing samples are the base "
                "model's."
            ]
        smallest = f"{min(noisy):.3g}"
        largest = f"{max(noisy):.3g}"
        values = smallest if smallest == largest else f"{smallest} to {largest}"
        total = len(temperatures)
        layers = f"all {total}" if len(noisy) == total else f"{len(noisy)} of {total}"
        return [f"roe: {roe['n']} routing samples, temperature {values} in {layers} MoE layers."]


def _check_temperatures(given: Any) -> None:
    """Raise ConfigError for a temperature that is no number of at least 0, nor a list of such
    numbers."""
    values = given if isinstance(given, list) else [given]
    for value in values:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < math.inf:
            raise ConfigError(
                f"method.temperature={given}: must be a number of at least 0, a list of such "
                "numbers with one entry per MoE layer, e.g. method.temperature=[0,0.1,0.2,0], or "
                "the path of a temperature profile."
            )
