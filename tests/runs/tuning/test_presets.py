"""What fills in a search; `tests/runs/experiments/test_figures.py` compares the presets with Table 1 of the paper.

Broken by: a model that is not known by its shape, a typed key that a preset replaces.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moe_lab.config.schema import Config, TaskConfig, TuningConfig
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.runs.tuning.search import paper_model, preset, resolve
from tests.support.runs import facts


def test_a_model_is_known_by_its_shape_whatever_it_is_called():
    assert paper_model(facts("olmoe", 16)) == "olmoe"
    assert paper_model(facts("mixtral", 32)) == "mixtral"
    assert paper_model(facts("gpt_oss", 24)) == "gpt-oss"
    assert paper_model(facts("olmoe", 8)) is None
    assert preset("commonsense", None).skip_layers == 1 and preset("code", None).cache == "clean"


def tuned(*overrides: str, method: dict | None = None, category: str | None = "math", **tuning) -> Config:
    return Config(
        method=get_method("roe").Config(**(method or {})),
        task=TaskConfig(category=category),
        tuning=TuningConfig(**{"name": "tpe", **tuning}),
        overrides=list(overrides),
    )


def test_presets_fill_what_was_not_given():
    config, search = resolve(tuned(), facts("mixtral", 32))
    assert config.method.n == 64 and config.method.temperature == 0.0 and config.method.cache == "standard"
    assert (search.n_trials, search.num_samples, search.max_temperature) == (50, 100, 0.25)
    assert list(search.layers) == list(range(5, 27))
    assert search.direction == "minimize"


def test_typed_keys_win_over_presets():
    typed = ("method.n=3", "method.cache=clean")
    given = tuned(*typed, method={"n": 3, "skip_layers": 2}, metric="accuracy", n_trials=7, num_samples=9)
    config, search = resolve(given, facts("mixtral", 32))
    assert config.method.n == 3 and config.method.cache == "clean"
    assert (search.metric, search.n_trials, search.num_samples, search.skip_layers) == ("accuracy", 7, 9, 2)
    assert search.direction == "maximize"


def test_the_untuned_model_is_trial_0_and_other_trials_are_the_samplers():
    search = resolve(tuned(), facts())[1]
    assert search.fixed(0) == {f"layer_{layer}": 0.0 for layer in range(1, 7)}
    assert search.fixed(1) is None
    found = search.temperatures({f"layer_{i}": i / 10 for i in range(1, 7)})
    assert found == [*(i / 10 for i in range(7)), 0]


def test_uniform_tries_every_step_in_all_layers():
    search = resolve(tuned(name="uniform", max_temperature=0.3), facts())[1]
    assert search.n_trials == 7
    assert [search.fixed(k)["temperature"] for k in range(7)] == [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3]
    assert search.temperatures({"temperature": 0.15}) == [0.15] * 8
    assert resolve(tuned(name="uniform"), facts())[1].n_trials == 21


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
        resolve(config, facts())


def test_seeds_are_five_with_tuning_unless_given():
    assert tuned().num_seeds == 5
    assert replace(tuned(), seeds=2).num_seeds == 2
    assert Config(method=get_method("roe").Config()).num_seeds == 1
    assert tuned(seeds=3).num_seeds == tuned(seeds=3).num_studies == 3
    assert Config(method=get_method("roe").Config(), tuning=TuningConfig(seeds=3), seeds=2).num_seeds == 2
