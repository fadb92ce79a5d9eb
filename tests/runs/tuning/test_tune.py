"""What bounds a trial, and what a trial of a grid measures.

Broken by: an untuned model or a sweep's step that is pruned, a limit other than the worst, a trial of a grid that
measures the settings of another, a profile with settings that are not those of the best trial.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from moe_lab.config.schema import Config
from moe_lab.methods.tuned_settings import Settings, TunedSettings
from moe_lab.runs.tuning import tune
from moe_lab.runs.tuning.tune import _grid_trials, _limit

POWERS = [0.0, 2.0, 0.5]


@pytest.mark.parametrize(
    "tuning, scaled, number, limit",
    [
        ("tpe", False, 0, None),
        ("tpe", False, 12, 1.5),
        ("uniform", False, 12, None),
        ("tpe", True, 12, None),
        ("random", False, 12, 1.5),
    ],
)
def test_only_a_samplers_trial_has_a_limit_and_it_is_the_worst_value(tuning, scaled, number, limit):
    study = SimpleNamespace(search=SimpleNamespace(tuning=tuning, logit_scale=scaled))
    trials = SimpleNamespace(worst=lambda: 1.5, best=lambda: SimpleNamespace(value=1.1))
    assert _limit(study, SimpleNamespace(number=number), trials) == limit


class Powered(TunedSettings):
    """A method whose value is its setting."""

    @dataclass(kw_only=True)
    class Config(TunedSettings.Config):
        name: str = "powered"
        power: float = 7.0
        fixed: int = 3

    def grid(self, facts: Any) -> list[Settings]:
        return [{"power": power} for power in POWERS]

    @contextmanager
    def open(self, model: Any, context: Any) -> Iterator[Any]:
        assert context.config.method == self.config
        yield SimpleNamespace(value=self.config.power, engine=None)


class Measure:
    """An objective: the value of the model that is open."""

    def __init__(self, study: Any, lm: Any):
        self.lm = lm

    def __call__(self, limit: float | None, report: Any) -> float:
        assert limit is None
        value: float = self.lm.value
        return value


def test_each_trial_of_a_grid_measures_its_own_settings_and_the_best_ones_are_kept(monkeypatch):
    monkeypatch.setattr(tune, "objective", Measure)
    own = Powered(Powered.Config())
    search = SimpleNamespace(grid=own.grid(None), metric="accuracy", logit_scale=False)
    study = SimpleNamespace(method=own, config=Config(method=own.config), search=search)
    run = _grid_trials(study, loaded=None)
    trials = [
        SimpleNamespace(number=number, report=None) for number in (2, 0, 1)
    ]  # workers take them in any order
    assert [run(trial, [], None)[0] for trial in trials] == [0.5, 0.0, 2.0]
    assert own.settings(search.grid[1]) == {"power": 2.0, "fixed": 3}
