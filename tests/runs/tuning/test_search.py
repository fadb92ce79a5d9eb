"""What a study searches, what bounds a trial, and what a trial of settings measures.

`tests/runs/experiments/test_figures.py` compares the presets with Table 1 of the RoE paper. Broken
by: a typed key that a preset replaces or a search ignores, a value at the bound of its search
that is not named, a point of a grid that is not its trial's, an untuned model or a sweep's step
that is pruned, a control that is not the base model's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from moe_lab.config.schema import Config, TaskConfig, TuningConfig
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.tunable_method import GridMethod, Settings
from moe_lab.runs.tuning.logit_scale import LogitScale
from moe_lab.runs.tuning.method_settings import MethodSettings, settings_search
from moe_lab.runs.tuning.presets import paper_model, preset
from moe_lab.runs.tuning.temperatures import LayerTemperatures, OneTemperature, temperature_search
from tests.support.runs import facts


def trial(number: int = 1, **params: float) -> SimpleNamespace:
    return SimpleNamespace(number=number, params=params)


def test_a_model_is_known_by_its_shape_whatever_it_is_called():
    assert paper_model(facts("olmoe", 16)) == "olmoe"
    assert paper_model(facts("mixtral", 32)) == "mixtral"
    assert paper_model(facts("gpt_oss", 24)) == "gpt-oss"
    assert paper_model(facts("olmoe", 8)) is None
    assert preset("commonsense", None).skip_layers == 1
    assert preset("code", None).cache == "clean"


def tuned(
    *overrides: str, method: dict | None = None, category: str | None = "math", **tuning
) -> Config:
    roe = get_method("roe").Config(**(method or {}))
    search = TuningConfig(**{"name": "tpe", **tuning})
    return Config(
        method=roe, task=TaskConfig(category=category), tuning=search, overrides=list(overrides)
    )


def test_presets_fill_what_was_not_typed():
    search = temperature_search(tuned(), facts("mixtral", 32))
    method = search.method.config
    assert (method.n, method.temperature, method.cache) == (64, 0.0, "standard")
    assert (search.n_trials, search.num_samples, search.max_temperature) == (50, 100, 0.25)
    assert list(search.layers) == list(range(5, 27))
    assert search.direction == "minimize"
    overrides = ("method.n=3", "method.cache=clean")
    tuned_config = tuned(
        *overrides, method={"n": 3, "skip_layers": 2}, metric="accuracy", n_trials=7, num_samples=9
    )
    search = temperature_search(tuned_config, facts("mixtral", 32))
    assert search.method.config.n == 3
    assert search.method.config.cache == "clean"
    settings = (search.metric, search.n_trials, search.num_samples, search.skip_layers)
    assert settings == ("accuracy", 7, 9, 2)
    assert search.direction == "maximize"


def test_the_untuned_model_is_trial_0_and_other_trials_are_the_samplers():
    search = temperature_search(tuned(), facts())
    assert search.fixed(0) == {f"layer_{layer}": 0.0 for layer in range(1, 7)}
    assert search.fixed(1) is None
    parameters = {f"layer_{layer}": layer / 10 for layer in range(1, 7)}
    temperatures = search.temperatures(trial(**parameters))
    assert temperatures == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0]


def test_uniform_tries_every_step_in_all_layers():
    search = temperature_search(tuned(name="uniform", max_temperature=0.3), facts())
    assert search.n_trials == 7
    steps = [search.fixed(number)["temperature"] for number in range(7)]
    assert steps == [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3]
    assert search.temperatures(trial(temperature=0.15)) == [0.15] * 8
    assert temperature_search(tuned(name="uniform"), facts()).n_trials == 21


@pytest.mark.parametrize(
    "config, message",
    [
        (tuned("method.temperature=0.3"), "leave method.temperature out"),
        (tuned("method.n=1", method={"n": 1}), "nothing to tune"),
        (tuned(method={"skip_layers": 4}), "leaves none of the 8"),
        (tuned(name="uniform", n_trials=5), "leave tuning.n_trials out"),
    ],
)
def test_searches_that_cannot_be(config, message):
    with pytest.raises(ConfigError, match=message):
        temperature_search(config, facts())


def test_seeds_are_five_with_tuning_unless_given():
    assert tuned().num_seeds == 5
    assert replace(tuned(), seeds=2).num_seeds == 2
    assert Config(method=get_method("roe").Config()).num_seeds == 1
    assert tuned(seeds=3).num_seeds == tuned(seeds=3).num_studies == 3
    assert (
        Config(method=get_method("roe").Config(), tuning=TuningConfig(seeds=3), seeds=2).num_seeds
        == 2
    )


# Bounds and grids


ROE = get_method("roe")(get_method("roe").Config(n=4, temperature=0.0))
SEARCH = {
    "method": ROE,
    "metric": "perplexity",
    "n_trials": 1,
    "num_samples": 1,
    "moe_layers": 4,
    "skip_layers": 1,
}


def layers(tuning: str = "tpe", **keys: Any) -> LayerTemperatures:
    return LayerTemperatures(tuning=tuning, max_temperature=0.5, **(SEARCH | keys))


def uniform(**keys: Any) -> OneTemperature:
    return OneTemperature(tuning="uniform", max_temperature=0.5, **(SEARCH | keys))


def scale(values: list[float]) -> LogitScale:
    return LogitScale(tuning="scale", given=values, **SEARCH)


@pytest.mark.parametrize(
    ("temperature", "named"), [(0.5, True), (0.495, True), (0.48, False), (0.0, False)]
)
def test_a_temperature_at_the_bound_is_named(temperature, named):
    assert uniform().at_bound({"temperature": temperature}, 1.0) == (
        ["temperature"] if named else []
    )
    params = {"layer_1": 0.1, "layer_2": temperature}
    assert layers().at_bound(params, 1.0) == (["layer_2"] if named else [])


def test_a_scale_at_the_bound_is_named():
    search = scale([0.0] * 4)
    assert search.at_bound({}, 1.2) == []
    assert search.at_bound({}, 4.001) == ["logit_scale"]


def test_random_searches_the_space_of_tpe_in_another_study():
    tpe = layers("tpe")
    drawn = layers("random")
    assert drawn.bounds == tpe.bounds
    assert drawn.identity == tpe.identity | {"tuning": "random"}


GRID = [{"power": 0.0, "rank": 1}, {"power": 0.5, "rank": 4}, {"power": 0.25, "rank": 4}]
TUNED = SimpleNamespace(open_ended=("power",), begins_with_base=True)


def settings(tuning: str = "grid", method: Any = TUNED, **keys: Any) -> MethodSettings:
    budget = {"metric": "perplexity", "n_trials": 3, "num_samples": 1, "moe_layers": 4}
    return MethodSettings(tuning=tuning, method=method, **({"grid": GRID} | budget | keys))


def test_a_grid_has_a_trial_for_each_point():
    search = settings()
    assert [search.fixed(number) for number in range(3)] == GRID
    assert search.bounds == {"power": (0.0, 0.5), "rank": (1, 4)}
    assert search.temperatures(trial()) == []
    assert [search.at_bound(point, 1.0) for point in GRID] == [[], ["power"], []]
    other_settings = settings(grid=GRID[:2])
    assert search.identity["grid"] == GRID
    assert other_settings.identity != search.identity


def test_the_identity_has_the_same_settings_for_every_search():
    """Ids of stored studies depend on it."""
    names = {"tuning", "metric", "moe_layers", "skip_layers", "max_temperature", "step"}
    names |= {"logit_scale", "given", "grid"}
    searches = [layers(), uniform(), scale([0.0] * 4), settings()]
    for search in searches:
        assert search.identity.keys() == names
    grid = searches[-1].identity
    assert (grid["skip_layers"], grid["max_temperature"], grid["step"]) == (0, 0.0, 0.05)
    error = layers(metric="accuracy", lower_is_better=True).identity
    assert error.keys() == names | {"lower_is_better"}


# Trials


POWERS = [0.0, 2.0, 0.5]


@pytest.mark.parametrize(
    "search, pruned",
    [
        (layers(), True),
        (layers("random"), True),
        (layers(logit_scale=True), False),
        (uniform(), False),
        (scale([0.0] * 4), False),
        (settings(), False),
        (settings("tpe"), True),
    ],
)
def test_only_trials_of_a_sampler_are_pruned_and_never_the_untuned_model(search, pruned):
    assert search.prunes(12) == pruned
    assert not search.prunes(0)


@pytest.mark.parametrize(
    "search, calibrates",
    [
        (layers(), True),
        (layers(metric="accuracy"), False),
        (uniform(), True),
        (scale([0.0] * 4), True),
        (scale([0.0, 0.1, 0.1, 0.0]), False),
        (settings(), True),
        (settings(metric="accuracy"), False),
        (settings(method=SimpleNamespace(begins_with_base=False)), False),
    ],
)
def test_the_control_is_the_base_model_at_its_best_scale(search, calibrates):
    assert search.calibrates == calibrates


class Opened:
    """An LM of a method, which says what it was opened with."""

    engine = "a KV engine"
    ensemble = Ensemble()

    def __init__(self, **opened: Any):
        self.opened = opened
        self.sets = 0

    def set_ensemble(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.sets += 1


class RoEOpened(get_method("roe")):
    @contextmanager
    def open(self, model: Any, context: Any) -> Iterator[Opened]:
        yield Opened(first=context.study.first, reuse=context.study.reuse)


NOISE = {"layer_1": 0.1, "layer_2": 0.2}


@pytest.mark.parametrize(
    "search, sweeps",
    [
        (layers(), [True, False, True]),
        (layers(logit_scale=True), [True, True, True]),
        (layers(metric="accuracy"), [False, False, False]),
    ],
)
def test_trials_of_temperatures_share_an_lm_whose_ensemble_changes(search, sweeps):
    search = replace(search, method=RoEOpened(ROE.config))
    config = Config(method=ROE.config)
    ensembles = []
    lms = set()
    with search.open(None, config) as open_trial:
        for params in (dict.fromkeys(NOISE, 0.0), NOISE, dict.fromkeys(NOISE, 0.0)):
            with open_trial(trial(**params)) as lm:
                lms.add(lm)
                assert lm.ensemble.routing.temperatures == search.temperatures(trial(**params))
                assert (lm.ensemble.n, lm.ensemble.first_noisy) == (4, 1)
                ensembles.append(lm.ensemble.sweep)
    [lm] = lms
    assert lm.opened["reuse"]
    assert lm.opened["first"].n == 4
    assert lm.sets == 3
    assert [sweep is not None for sweep in ensembles] == sweeps
    sums = [sweep for sweep in ensembles if sweep is not None]
    assert len(set(map(id, sums))) == len(sums), "each trial has its own sums"


def test_the_only_trial_of_a_scale_keeps_no_activations_for_others():
    """Broken by memory that is filled for nothing."""
    temperatures = [0.0, 0.1, 0.2, 0.0]
    search = replace(scale(temperatures), method=RoEOpened(ROE.config))
    with search.open(None, Config(method=ROE.config)) as open_trial, open_trial(trial()) as lm:
        assert lm.ensemble.routing.temperatures == temperatures
        assert not lm.opened["reuse"]


class Powered(GridMethod):
    """A method whose value is its setting."""

    @dataclass(kw_only=True)
    class Config(GridMethod.Config):
        name: str = "powered"
        power: float = 7.0
        fixed: int = 3

    def grid(self, facts: Any) -> list[Settings]:
        return [{"power": power} for power in POWERS]

    @contextmanager
    def open(self, model: Any, context: Any) -> Iterator[Any]:
        assert context.config.method == self.config
        yield Opened(power=self.config.power)


@pytest.mark.parametrize("metric, sweeps", [("accuracy", []), ("perplexity", [0])])
def test_each_trial_of_a_grid_opens_its_own_settings_and_the_best_ones_are_kept(metric, sweeps):
    method = Powered(Powered.Config())
    search = settings(method=method, grid=method.grid(None), metric=metric)
    powers = {}
    swept = []
    with search.open(None, Config(method=method.config)) as open_trial:
        for number in (2, 0, 1):  # workers take them in any order
            with open_trial(trial(number, power=99.0)) as lm:
                powers[number] = lm.opened["power"]
                if lm.ensemble.sweep is not None:
                    swept.append(number)
    assert powers == {0: 0.0, 1: 2.0, 2: 0.5}
    assert swept == sweeps
    assert search.method_settings(trial(1)) == {"power": 2.0, "fixed": 3}
    drawn = replace(search, tuning="tpe")
    assert drawn.method_settings(trial(1, power=1.25)) == {"power": 1.25, "fixed": 3}


def powered(metric=None, **keys):
    tuning = SimpleNamespace(name="grid", metric=metric, num_samples=None)
    task = SimpleNamespace(category="code")
    config = SimpleNamespace(method=Powered.Config(**keys), task=task, tuning=tuning)
    return settings_search(config, facts())


def test_the_search_of_a_grid_has_the_budget_of_the_task(monkeypatch):
    monkeypatch.setattr(
        "moe_lab.runs.tuning.method_settings.get_method", {"powered": Powered}.__getitem__
    )
    search = powered(fixed=4)
    assert (search.metric, search.num_samples, search.n_trials) == ("accuracy", 50, 3)
    assert powered(metric="perplexity").direction == "minimize"
    with pytest.raises(ConfigError, match="method.power=2.0: tuning=grid searches it"):
        powered(power=2.0)
