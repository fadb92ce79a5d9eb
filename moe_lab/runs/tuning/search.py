"""The search space of a study: the temperatures of a trial."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError
from moe_lab.runs.tuning.presets import paper_model, preset

if TYPE_CHECKING:
    from moe_lab.models.facts import ModelFacts

STEP = 0.05
"""Step between the temperatures of tuning=uniform (appendix B of the paper)."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search with all settings, by default those of Table 1."""

    tuning: str
    """tpe: one temperature per MoE layer; uniform: one for all, in steps."""
    metric: str
    n_trials: int
    num_samples: int
    max_temperature: float
    skip_layers: int
    """L: the first and the last L MoE layers keep temperature 0."""
    moe_layers: int

    @property
    def direction(self) -> str:
        """Optuna's direction: perplexity is minimized, accuracy maximized."""
        return "minimize" if self.metric == "perplexity" else "maximize"

    @property
    def layers(self) -> range:
        """The MoE layers that may be noisy."""
        return range(self.skip_layers, self.moe_layers - self.skip_layers)

    def fixed(self, number: int) -> dict[str, float] | None:
        """The parameters of a trial that no sampler chooses, else None. Trial 0 is the untuned model."""
        if self.tuning == "uniform":
            return {"temperature": round(number * STEP, 10)}
        return dict.fromkeys(self.parameters, 0.0) if number == 0 else None

    @property
    def parameters(self) -> list[str]:
        """Parameter names: a temperature per searched layer, or one for all."""
        return ["temperature"] if self.tuning == "uniform" else [f"layer_{layer}" for layer in self.layers]

    def temperatures(self, params: dict[str, float]) -> list[float]:
        """The temperatures of a trial, one per MoE layer of the model; 0 in layers that are not searched."""
        if self.tuning == "uniform":
            given = dict.fromkeys(self.layers, params["temperature"])
        else:
            given = {layer: params[f"layer_{layer}"] for layer in self.layers}
        return [given.get(layer, 0.0) for layer in range(self.moe_layers)]


def resolve(config: Config, facts: ModelFacts) -> tuple[Config, Search]:
    """The configuration with n and cache of the preset, and the search with all settings.

    Raises ConfigError for settings that contradict a search.
    """
    typed = {override.partition("=")[0].lstrip("+") for override in config.overrides}
    default = type(config.method)()
    if "method.temperature" in typed or config.method.temperature != default.temperature:
        raise ConfigError(
            f"tuning={config.tuning.name} searches the temperatures: leave method.temperature out, or tuning."
        )
    usual = preset(config.task.category, paper_model(facts))
    uniform = config.tuning.name == "uniform"
    skip = config.method.skip_layers
    if skip is None:
        skip = 0 if uniform else usual.skip_layers
    if 2 * skip >= facts.moe_layers:
        raise ConfigError(
            f"method.skip_layers={skip} leaves none of the {facts.moe_layers} MoE layers to tune. Choose a smaller one."
        )
    given = config.tuning
    last = given.max_temperature or (1.0 if uniform else usual.max_temperature)
    search = Search(
        tuning=given.name,
        metric=given.metric or usual.metric,
        n_trials=_uniform_trials(config, last) if uniform else given.n_trials or usual.n_trials,
        num_samples=given.num_samples or usual.num_samples,
        max_temperature=last,
        skip_layers=skip,
        moe_layers=facts.moe_layers,
    )

    def chosen(key: str) -> Any:
        """The value of a method's key if it was given, else the preset's."""
        given = getattr(config.method, key)
        return given if f"method.{key}" in typed or given != getattr(default, key) else getattr(usual, key)

    n = chosen("n")
    if n == 1:
        raise ConfigError("method.n=1 has no noisy row: there is nothing to tune.")
    method: Any = replace(config.method, n=n, cache=chosen("cache"), temperature=0.0, skip_layers=skip)
    return replace(config, method=method), search


def _uniform_trials(config: Config, last: float) -> int:
    if config.tuning.n_trials is not None:
        raise ConfigError(
            f"tuning=uniform tries every step of {STEP} up to tuning.max_temperature: leave tuning.n_trials out."
        )
    return int(last / STEP + 1e-6) + 1
