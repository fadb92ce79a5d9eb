"""The search space of a study. Broken by: a value at the bound of its search that is not named, a point of a grid that is
not its trial's, another grid in the same study, a key that is given and searched.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from moe_lab.errors import ConfigError
from moe_lab.methods.tuned_settings import TunedSettings
from moe_lab.runs.tuning.search import Search, resolve_grid
from tests.support.runs import facts

SEARCH = {"metric": "perplexity", "n_trials": 1, "num_samples": 1, "max_temperature": 0.5, "skip_layers": 1}


@pytest.mark.parametrize(("found", "named"), [(0.5, True), (0.495, True), (0.48, False), (0.0, False)])
def test_a_temperature_at_the_bound_is_named(found, named):
    one = Search(tuning="uniform", moe_layers=4, **SEARCH)
    assert one.at_bound({"temperature": found}, 1.0) == (["temperature"] if named else [])
    each = Search(tuning="tpe", moe_layers=4, **SEARCH)
    assert each.at_bound({"layer_1": 0.1, "layer_2": found}, 1.0) == (["layer_2"] if named else [])


def test_a_scale_at_the_bound_is_named():
    search = Search(tuning="scale", moe_layers=2, logit_scale=True, given=[0.0, 0.0], **SEARCH)
    assert search.at_bound({}, 1.2) == [] and search.at_bound({}, 4.001) == ["logit_scale"]


def test_random_searches_the_space_of_tpe_in_another_study():
    tpe, drawn = (Search(tuning=name, moe_layers=4, **SEARCH) for name in ("tpe", "random"))
    assert drawn.parameters == tpe.parameters and drawn.identity == tpe.identity | {"tuning": "random"}


GRID = [{"power": 0.0, "rank": 1}, {"power": 0.5, "rank": 4}, {"power": 0.25, "rank": 4}]


def test_a_grid_has_a_trial_for_each_point():
    search = Search(tuning="grid", moe_layers=4, grid=GRID, open_ended=("power",), **SEARCH)
    assert [search.fixed(number) for number in range(3)] == GRID and search.parameters == ["power", "rank"]
    assert search.bounds("power") == (0.0, 0.5) and search.temperatures(GRID[1]) == []
    assert [search.at_bound(point, 1.0) for point in GRID] == [[], ["power"], []]
    other = Search(tuning="grid", moe_layers=4, grid=GRID[:2], **SEARCH)
    assert search.identity["grid"] == GRID and other.identity != search.identity


class Powered(TunedSettings):
    @dataclass(kw_only=True)
    class Config(TunedSettings.Config):
        name: str = "powered"
        power: float = 0.5
        fixed: int = 3

    def grid(self, facts):
        return [{"power": 0.0}, {"power": 1.0}]

    def open(self, model, context):
        raise NotImplementedError


def powered(metric=None, **keys):
    method = Powered(Powered.Config(**keys))
    config = SimpleNamespace(
        method=method.config,
        task=SimpleNamespace(category="code"),
        tuning=SimpleNamespace(name="grid", metric=metric, num_samples=None),
    )
    return resolve_grid(config, facts(), method)


def test_the_search_of_a_grid_has_the_budget_of_the_task():
    search = powered(fixed=4)
    assert (search.metric, search.num_samples, search.n_trials) == ("accuracy", 50, 2)
    assert powered(metric="perplexity").direction == "minimize"


def test_a_key_that_is_searched_is_not_given():
    with pytest.raises(ConfigError, match="method.power=0.7: tuning=grid searches it"):
        powered(power=0.7)
