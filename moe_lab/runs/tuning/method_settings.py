"""The search of settings of a method: every point of its grid, or ranges.

A sampler draws from the ranges that the points of the grid span.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config
from moe_lab.engine.forward.ensemble import ScaleSweep
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.method import Context
from moe_lab.models.facts import LoadedModel, ModelFacts
from moe_lab.runs.tuning.presets import paper_model, preset
from moe_lab.runs.tuning.search import OpenTrial, Search, TrialPoint

if TYPE_CHECKING:
    from moe_lab.engine.lm import EngineLM


@dataclass(frozen=True, kw_only=True)
class MethodSettings(Search):
    """Settings of a `GridMethod`. Each trial opens the method with its own settings."""

    grid: list[dict[str, float]]
    """The settings of each trial of tuning=grid; in another tuning, the corners of their ranges."""

    @property
    def begins_with_base(self) -> bool:
        """Whether the first point of the method's grid is the base model."""
        return bool(self.method.begins_with_base)

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """The smallest and the largest value of each setting in the grid."""
        bounds = {}
        for name in self.grid[0]:
            values = [point[name] for point in self.grid]
            bounds[name] = (min(values), max(values))
        return bounds

    def fixed(self, number: int) -> dict[str, float] | None:
        """A point of the grid: the trial's own with tuning=grid, else the first one for trial 0.
        None for other trials, which the sampler draws."""
        if self.tuning == "grid" or number == 0:
            return self.grid[number]
        return None

    def prunes(self, number: int) -> bool:
        """Not with tuning=grid, nor trial 0."""
        return self.tuning != "grid" and number > 0

    @contextmanager
    def open(self, loaded: LoadedModel, config: Config) -> Iterator[OpenTrial]:
        """Inside the context, the function opens the method at the settings of a trial."""
        yield partial(self._open_trial, loaded, config)

    @contextmanager
    def _open_trial(
        self, loaded: LoadedModel, config: Config, trial: TrialPoint
    ) -> Iterator[EngineLM]:
        """The LM of the method at the trial's settings. In trial 0, it finds the best logit scale
        if that is the control."""
        settings = self.method.at(self._point(trial))
        method = type(self.method)(settings)
        context = Context(config=replace(config, method=settings))
        with method.open(loaded, context) as lm:
            lm.progress = False
            if trial.number == 0 and self.calibrates and lm.engine is not None:
                lm.set_ensemble(replace(lm.ensemble, sweep=ScaleSweep()))
            yield lm

    def temperatures(self, trial: TrialPoint) -> list[float]:
        """None: the search is of other settings."""
        return []

    def method_settings(self, trial: TrialPoint) -> dict[str, Any]:
        """The settings that the profile stores."""
        settings: dict[str, Any] = self.method.settings(self._point(trial))
        return settings

    def at_bound(self, params: dict[str, float], logit_scale: float) -> list[str]:
        """As in `Search`, without the keys whose upper bound is the largest value that the method
        takes."""
        names = super().at_bound(params, logit_scale)
        return [name for name in names if name in self.method.open_ended]

    def _point(self, trial: TrialPoint) -> dict[str, float]:
        """The settings of a trial as the grid has them, or as they were sampled.

        Numbers of experts are integers in the grid.
        """
        return self.fixed(trial.number) or trial.params


def settings_search(config: Config, facts: ModelFacts) -> MethodSettings:
    """The search of `config.tuning`. Raises ConfigError for settings that contradict it."""
    tuning = config.tuning
    method: Any = get_method(config.method.name)(config.method)
    grid = method.grid(facts) if tuning.name == "grid" else method.corners(facts)
    points = [method.values(settings) for settings in grid]
    default = type(config.method)()
    for key in ("profile", *points[0]):
        value = getattr(config.method, key)
        if isinstance(value, list):  # trial 0 begins with it
            continue
        is_tried = all(point.get(key) == value for point in points[1:])
        if value != getattr(default, key) and not is_tried:
            raise ConfigError(
                f"method.{key}={value}: tuning={tuning.name} searches it. Leave one out."
            )
    usual = preset(config.task.category, paper_model(facts))
    n_trials = len(grid) if tuning.name == "grid" else tuning.n_trials or usual.n_trials
    return MethodSettings(
        method=method,
        tuning=tuning.name,
        metric=tuning.metric or usual.metric,
        n_trials=n_trials,
        num_samples=tuning.num_samples or usual.num_samples,
        moe_layers=facts.moe_layers,
        grid=grid,
    )
