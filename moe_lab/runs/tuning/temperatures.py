"""Searches of routing temperatures: one per MoE layer, or one for all layers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config
from moe_lab.engine.forward.ensemble import Ensemble, ScaleSweep
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.method import Context, StudyStart
from moe_lab.models.facts import LoadedModel, ModelFacts
from moe_lab.runs.tuning.presets import Preset, paper_model, preset
from moe_lab.runs.tuning.search import STEP, OpenTrial, Search, TrialPoint

if TYPE_CHECKING:
    from moe_lab.engine.lm import EngineLM


@dataclass(frozen=True, kw_only=True)
class EnsembleSearch(Search):
    """A search of ensembles of one method. Its trials share an LM, whose ensemble changes."""

    skip_layers: int = 0
    """L: the first and the last L MoE layers keep temperature 0."""

    @property
    @abstractmethod
    def reuse(self) -> bool:
        """Whether the LM keeps, for the next trials, activations that no temperature changes."""

    @contextmanager
    def open(self, loaded: LoadedModel, config: Config) -> Iterator[OpenTrial]:
        """Open the method once. Inside the context, the function sets the ensemble of a trial on
        the one LM, and returns the LM."""
        first = self._ensemble([0.0] * self.moe_layers, config.seed)
        context = Context(config=config, study=StudyStart(first=first, reuse=self.reuse))
        with self.method.open(loaded, context) as lm:

            def open_trial(trial: TrialPoint) -> AbstractContextManager[EngineLM]:
                """The LM at the temperatures of a trial."""
                lm.set_ensemble(self._ensemble(self.temperatures(trial), config.seed))
                return nullcontext(lm)

            yield open_trial

    def _ensemble(self, temperatures: list[float], seed: int) -> Ensemble:
        """The ensemble at these temperatures.

        `tuning.logit_scale=true` finds the best logit scale of every trial. Other studies of
        perplexity find it at temperature 0 alone, which is the control.
        """
        ensemble: Ensemble = self.method.ensemble(temperatures, self.skip_layers, seed)
        is_control = self.metric == "perplexity" and not any(temperatures)
        if self.logit_scale or is_control:
            ensemble = replace(ensemble, sweep=ScaleSweep())
        return ensemble


@dataclass(frozen=True, kw_only=True)
class TemperatureSearch(EnsembleSearch):
    """A search of temperatures between 0 and an upper bound.

    Trial 0 has temperature 0 everywhere.
    """

    max_temperature: float
    step: float = STEP
    """The step of tuning=uniform. No other search reads it, but it is part of their identities."""

    reuse = True
    begins_with_base = True

    @property
    def layers(self) -> range:
        """The MoE layers that may be noisy."""
        return range(self.skip_layers, self.moe_layers - self.skip_layers)


@dataclass(frozen=True, kw_only=True)
class LayerTemperatures(TemperatureSearch):
    """One temperature per MoE layer, drawn by a sampler (tuning=tpe, tuning=random)."""

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """A parameter `layer_<number>` for each MoE layer that may be noisy."""
        return {f"layer_{layer}": (0.0, self.max_temperature) for layer in self.layers}

    def fixed(self, number: int) -> dict[str, float] | None:
        """Temperature 0 in all layers for trial 0; None for the others, which the sampler draws."""
        if number == 0:
            return dict.fromkeys(self.bounds, 0.0)
        return None

    def prunes(self, number: int) -> bool:
        """Whether a trial may be pruned.

        Not the base model, nor a trial that searches a logit scale: its perplexity is known only
        at the end.
        """
        return number > 0 and not self.logit_scale

    def temperatures(self, trial: TrialPoint) -> list[float]:
        """The temperatures of a trial, one per MoE layer; 0 in layers without noise."""
        params = trial.params
        temperatures = [0.0] * self.moe_layers
        for layer in self.layers:
            temperatures[layer] = params[f"layer_{layer}"]
        return temperatures


@dataclass(frozen=True, kw_only=True)
class OneTemperature(TemperatureSearch):
    """One temperature for all MoE layers, in steps (tuning=uniform)."""

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """The parameter `temperature`."""
        return {"temperature": (0.0, self.max_temperature)}

    def fixed(self, number: int) -> dict[str, float]:
        """The trial's step: trial 3 has three times the step."""
        return {"temperature": round(number * self.step, 10)}

    def prunes(self, number: int) -> bool:
        """Never: trials are points of a curve."""
        return False

    def temperatures(self, trial: TrialPoint) -> list[float]:
        """The trial's temperature in every MoE layer that may be noisy; 0 in the others."""
        temperatures = [0.0] * self.moe_layers
        for layer in self.layers:
            temperatures[layer] = trial.params["temperature"]
        return temperatures


def temperature_search(config: Config, facts: ModelFacts) -> TemperatureSearch:
    """The search of `config.tuning`.

    Its method has n and cache of the preset, unless they are given.

    Raises ConfigError for settings that contradict the search.
    """
    tuning = config.tuning
    is_uniform = tuning.name == "uniform"
    usual = preset(config.task.category, paper_model(facts))
    metric = tuning.metric or usual.metric
    skip_layers = config.method.skip_layers
    if skip_layers is None:
        skip_layers = 0 if is_uniform else usual.skip_layers
    _check_settings(config, facts, metric, skip_layers)
    settings: dict[str, Any] = {
        "method": _tuned_method(config, usual, skip_layers),
        "tuning": tuning.name,
        "metric": metric,
        "num_samples": tuning.num_samples or usual.num_samples,
        "moe_layers": facts.moe_layers,
        "skip_layers": skip_layers,
        "step": tuning.step,
        "logit_scale": tuning.logit_scale,
    }
    if is_uniform:
        largest = tuning.max_temperature or 1.0
        n_trials = int(largest / tuning.step + 1e-6) + 1
        return OneTemperature(max_temperature=largest, n_trials=n_trials, **settings)
    return LayerTemperatures(
        max_temperature=tuning.max_temperature or usual.max_temperature,
        n_trials=tuning.n_trials or usual.n_trials,
        **settings,
    )


def _check_settings(config: Config, facts: ModelFacts, metric: str, skip_layers: int) -> None:
    """Raise ConfigError for settings that contradict a search of temperatures.

    Args:
        metric: that of the search.
        skip_layers: MoE layers without noise at either end.
    """
    tuning = config.tuning
    if _is_given(config, "temperature"):
        raise ConfigError(
            f"tuning={tuning.name} searches the temperatures: "
            "leave method.temperature out, or tuning."
        )
    if 2 * skip_layers >= facts.moe_layers:
        raise ConfigError(
            f"method.skip_layers={skip_layers} leaves none of the {facts.moe_layers} MoE layers to "
            "tune. Choose a smaller one."
        )
    if tuning.logit_scale and metric != "perplexity":
        raise ConfigError(
            "tuning.logit_scale=true is searched by perplexity: add tuning.metric=perplexity."
        )
    if tuning.name == "uniform" and tuning.n_trials is not None:
        raise ConfigError(
            f"tuning=uniform tries every step of {tuning.step} up to tuning.max_temperature: "
            "leave tuning.n_trials out."
        )


def _tuned_method(config: Config, usual: Preset, skip_layers: int) -> Any:
    """The method at temperature 0, with n and cache of the preset where they are not given.

    Raises ConfigError for n=1, which has no noise.
    """
    method_config = config.method
    n = method_config.n if _is_given(config, "n") else usual.n
    cache = method_config.cache if _is_given(config, "cache") else usual.cache
    if n == 1:
        raise ConfigError(
            "method.n=1 has no noisy routing sample, so there is nothing to tune. Raise it."
        )
    settings: Any = replace(
        method_config, n=n, cache=cache, temperature=0.0, skip_layers=skip_layers
    )
    return get_method(settings.name)(settings)


def _is_given(config: Config, key: str) -> bool:
    """Whether a key of the method was typed, or has another value than its default."""
    typed_keys = [override.partition("=")[0].lstrip("+") for override in config.overrides]
    if f"method.{key}" in typed_keys:
        return True
    default = type(config.method)()
    return bool(getattr(config.method, key) != getattr(default, key))
