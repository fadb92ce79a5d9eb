"""What a study searches, what bounds a trial, what a trial of a grid measures, and trials on disk.

`tests/runs/experiments/test_figures.py` compares the presets with Table 1 of the RoE paper. Broken by: a typed key that a
preset replaces or a search ignores, a value at the bound of its search that is not named, a point of a grid that is not its
trial's, an untuned model or a sweep's step that is pruned, a limit other than the worst; a trial that is lost, made twice or
beyond n_trials, a dead process waited for, a sampler whose choices depend on where a study was interrupted.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest

from moe_lab.config.schema import Config, TaskConfig, TuningConfig
from moe_lab.errors import ConfigError, ResultsError
from moe_lab.methods import get_method
from moe_lab.methods.policy_method import PolicyMethod, Settings
from moe_lab.runs.tuning import tune
from moe_lab.runs.tuning.search import Search, paper_model, preset, resolve, resolve_grid
from moe_lab.runs.tuning.trials import STORAGE, Trials, storage_errors
from moe_lab.runs.tuning.tune import Measurement, _limit
from tests.support.runs import facts


def test_a_model_is_known_by_its_shape_whatever_it_is_called():
    assert paper_model(facts("olmoe", 16)) == "olmoe"
    assert paper_model(facts("mixtral", 32)) == "mixtral"
    assert paper_model(facts("gpt_oss", 24)) == "gpt-oss"
    assert paper_model(facts("olmoe", 8)) is None
    assert preset("commonsense", None).skip_layers == 1 and preset("code", None).cache == "clean"


def tuned(
    *overrides: str, method: dict | None = None, category: str | None = "math", **tuning
) -> Config:
    roe, search = (
        get_method("roe").Config(**(method or {})),
        TuningConfig(**{"name": "tpe", **tuning}),
    )
    return Config(
        method=roe, task=TaskConfig(category=category), tuning=search, overrides=list(overrides)
    )


def test_presets_fill_what_was_not_typed():
    config, search = resolve(tuned(), facts("mixtral", 32))
    assert (
        config.method.n == 64
        and config.method.temperature == 0.0
        and config.method.cache == "standard"
    )
    assert (search.n_trials, search.num_samples, search.max_temperature) == (50, 100, 0.25)
    assert list(search.layers) == list(range(5, 27))
    assert search.direction == "minimize"
    typed = ("method.n=3", "method.cache=clean")
    given = tuned(
        *typed, method={"n": 3, "skip_layers": 2}, metric="accuracy", n_trials=7, num_samples=9
    )
    config, search = resolve(given, facts("mixtral", 32))
    assert config.method.n == 3 and config.method.cache == "clean"
    assert (search.metric, search.n_trials, search.num_samples, search.skip_layers) == (
        "accuracy",
        7,
        9,
        2,
    )
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
    assert [search.fixed(k)["temperature"] for k in range(7)] == [
        0,
        0.05,
        0.1,
        0.15,
        0.2,
        0.25,
        0.3,
    ]
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
    assert (
        Config(method=get_method("roe").Config(), tuning=TuningConfig(seeds=3), seeds=2).num_seeds
        == 2
    )


# Bounds and grids


SEARCH = {
    "metric": "perplexity",
    "n_trials": 1,
    "num_samples": 1,
    "max_temperature": 0.5,
    "skip_layers": 1,
}


@pytest.mark.parametrize(
    ("found", "named"), [(0.5, True), (0.495, True), (0.48, False), (0.0, False)]
)
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
    assert drawn.bounds == tpe.bounds and drawn.identity == tpe.identity | {"tuning": "random"}


GRID = [{"power": 0.0, "rank": 1}, {"power": 0.5, "rank": 4}, {"power": 0.25, "rank": 4}]


def test_a_grid_has_a_trial_for_each_point():
    search = Search(tuning="grid", moe_layers=4, grid=GRID, open_ended=("power",), **SEARCH)
    assert [search.fixed(number) for number in range(3)] == GRID
    assert (
        search.bounds == {"power": (0.0, 0.5), "rank": (1, 4)}
        and search.temperatures(GRID[1]) == []
    )
    assert [search.at_bound(point, 1.0) for point in GRID] == [[], ["power"], []]
    other = Search(tuning="grid", moe_layers=4, grid=GRID[:2], **SEARCH)
    assert search.identity["grid"] == GRID and other.identity != search.identity


# Trials


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


class Powered(PolicyMethod):
    """A method whose value is its setting."""

    @dataclass(kw_only=True)
    class Config(PolicyMethod.Config):
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
    sizes = {"n_trials": 3, "num_samples": 1, "moe_layers": 1}
    search = Search(tuning="grid", grid=own.grid(None), metric="accuracy", **sizes)
    study = SimpleNamespace(method=own, config=Config(method=own.config), search=search)
    measure = Measurement(study, None, ExitStack())
    # workers take them in any order
    trials = [SimpleNamespace(number=number, report=None) for number in (2, 0, 1)]
    assert [measure(trial, [], None)[0] for trial in trials] == [0.5, 0.0, 2.0]
    assert own.settings(search.grid[1]) == {"power": 2.0, "fixed": 3}


def powered(metric=None, **keys):
    tuning = SimpleNamespace(name="grid", metric=metric, num_samples=None)
    task = SimpleNamespace(category="code")
    config = SimpleNamespace(method=Powered.Config(**keys), task=task, tuning=tuning)
    return resolve_grid(config, facts(), Powered(config.method))


def test_the_search_of_a_grid_has_the_budget_of_the_task():
    search = powered(fixed=4)
    assert (search.metric, search.num_samples, search.n_trials) == ("accuracy", 50, 3)
    assert powered(metric="perplexity").direction == "minimize"
    with pytest.raises(ConfigError, match="method.power=2.0: tuning=grid searches it"):
        powered(power=2.0)


# Trials on disk


fork = multiprocessing.get_context("fork")


def search(n_trials: int, **keys) -> Search:
    given = dict(
        tuning="tpe", metric="perplexity", num_samples=4, max_temperature=0.5, skip_layers=1
    )
    return Search(n_trials=n_trials, moe_layers=5, **(given | keys))


def value(temperatures: list[float]) -> float:
    return sum((t - 0.2) ** 2 for t in temperatures)


def run(folder: Path, wanted: Search, most: int | None = None) -> list[tuple]:
    """Compute up to `most` of what is missing."""
    made = []
    with Trials(folder, wanted, seed=3) as trials:
        while (most is None or len(made) < most) and (claimed := trials.claim()) is not None:
            trial, temperatures = claimed
            trials.tell(trial, value(temperatures))
            made.append((trial.number, temperatures))
    return made


def test_trial_0_is_the_untuned_model_and_n_trials_is_a_total(tmp_path):
    folder = tmp_path / "a folder, with 100%"
    made = run(folder, search(6), most=4)
    assert made[0] == (0, [0.0] * 5)
    assert [number for number, _ in made] == [0, 1, 2, 3]
    assert all(t[0] == t[-1] == 0 and all(0 <= x <= 0.5 for x in t) for _, t in made)
    assert [number for number, _ in run(folder, search(6))] == [4, 5]
    assert run(folder, search(6)) == []
    assert [number for number, _ in run(folder, search(8))] == [6, 7]


@pytest.mark.slow
def test_an_enlarged_study_keeps_its_start(tmp_path):
    """Broken by trials that depend on the moment of an interruption, or on a budget that comes later."""
    unbroken = run(tmp_path / "unbroken", search(6)) + run(tmp_path / "unbroken", search(14))
    broken = run(tmp_path / "broken", search(6), most=1) + run(tmp_path / "broken", search(6))
    broken += run(tmp_path / "broken", search(14), most=3) + run(tmp_path / "broken", search(14))
    assert unbroken == broken
    assert unbroken[2:] != run(tmp_path / "at once", search(14))[2:]


@pytest.mark.slow
def test_a_trial_whose_process_died_is_taken_over_as_it_was(tmp_path):
    run(tmp_path, search(5), most=2)

    def die() -> None:
        trials = Trials(tmp_path, search(5), seed=3).__enter__()
        (tmp_path / "claimed").write_text(str(trials.claim()[1]))
        os.kill(os.getpid(), signal.SIGKILL)

    process = fork.Process(target=die)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    made = run(tmp_path, search(5))
    assert [number for number, _ in made] == [2, 3, 4]
    assert str(made[0][1]) == (tmp_path / "claimed").read_text()


@pytest.mark.slow
def test_a_trial_that_was_killed_while_it_drew_draws_the_rest_as_it_would_have(tmp_path):
    wanted = search(14)
    unbroken = run(tmp_path / "a", wanted)
    run(tmp_path / "b", wanted, most=12)
    with Trials(tmp_path / "b", wanted, seed=3) as trials:
        sampler, drawn = trials._sampler, []

        def killed(number, place):
            if len(drawn) == 2:
                raise KeyboardInterrupt
            drawn.append(place)
            return sampler(number, place)

        trials._sampler = killed
        with pytest.raises(KeyboardInterrupt):
            trials.claim()
        assert len(trials.study.get_trials()[12].params) == 2
    rest = run(tmp_path / "b", wanted)
    assert [number for number, _ in rest] == [12, 13] and rest == unbroken[12:]


def test_a_storage_that_cannot_be_used_is_named(tmp_path):
    run(tmp_path, search(2))
    (tmp_path / "storage.db").write_bytes(b"no database at all" * 100)
    told = r"storage\.db could not be read .*\n.*move its folder away"
    with pytest.raises(ResultsError, match=told), storage_errors(tmp_path):
        run(tmp_path, search(3))


@pytest.mark.slow
def test_two_processes_share_a_study(tmp_path):

    def work(name: str) -> None:
        made = []
        with Trials(tmp_path, search(30), seed=3) as trials:
            while (claimed := trials.claim()) is not None:
                time.sleep(0.02)
                trials.tell(claimed[0], value(claimed[1]))
                made.append(claimed[0].number)
        (tmp_path / name).write_text(" ".join(map(str, made)))

    both = [fork.Process(target=work, args=(name,)) for name in ("one", "other")]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    numbers = [
        int(number) for name in ("one", "other") for number in (tmp_path / name).read_text().split()
    ]
    assert sorted(numbers) == list(range(30))
    with Trials(tmp_path, search(30), seed=3) as trials:
        assert trials.claim() is None
        finished = trials.finished()
    assert len(finished) == 30 and len({tuple(trial.params.values()) for trial in finished}) == 30


@pytest.mark.slow
def test_a_study_waits_for_a_living_process(tmp_path):
    """The last trial of another worker is not taken: claim() returns only once it is told."""
    claimed = fork.Event()

    def work() -> None:
        with Trials(tmp_path, search(1), seed=3) as trials:
            trial, temperatures = trials.claim()
            claimed.set()
            time.sleep(1.5)
            trials.tell(trial, value(temperatures))

    other = fork.Process(target=work)
    other.start()
    assert claimed.wait(60)
    with Trials(tmp_path, search(1), seed=3) as trials:
        assert trials.claim() is None
        assert [trial.number for trial in trials.finished()] == [0]
    other.join(60)
    assert other.exitcode == 0


def test_of_equal_trials_the_untuned_one_is_best_and_pruned_ones_count_and_are_never_best(tmp_path):
    with Trials(tmp_path / "equal", search(4, metric="accuracy"), seed=0) as trials:
        for given in (0.5, 0.4, 0.5, 0.5):
            trial, _ = trials.claim()
            trials.tell(trial, given)
        assert trials.best().number == 0
    with Trials(tmp_path / "pruned", search(3), seed=0) as trials:
        for given in (1.0, None, 2.0):
            trial, _ = trials.claim()
            if given is None:
                trial.report(0.1, 2)
            trials.tell(trial, given)
        assert len(trials.finished()) == 3 and trials.best().number == 0
        assert trials.claim() is None


def test_pruning_begins_after_the_random_trials_and_is_by_the_worst(tmp_path):
    with Trials(tmp_path, search(30), seed=0) as trials:
        for given in [1.2, 1.5, 1.1, 1.3, 1.3, 1.3, 1.3, 1.3, 1.3]:
            trials.tell(trials.claim()[0], given)
        assert trials.worst() is None
        trials.tell(trials.claim()[0], 1.4)
        assert trials.worst() == 1.5
        trials.claim()[0].report(9.0, 1)
        assert trials.worst() == 1.5


@pytest.mark.parametrize(("budget", "startup"), [(50, 10), (29, 9), (2, 1)])
def test_a_third_of_the_trials_are_random(budget, startup, tmp_path):
    for n_trials in (budget, 90):  # the study keeps the number that it began with
        with Trials(tmp_path, search(n_trials), seed=0) as trials:
            trials.claim()
            assert trials.study.sampler._n_startup_trials == trials.startup == startup


def test_the_sampler_is_the_papers_and_tells_other_processes(tmp_path):
    with Trials(tmp_path, search(3), seed=0) as trials:
        trials.claim()
        sampler = trials.study.sampler
        assert (sampler._n_ei_candidates, sampler._multivariate) == (24, False)
        assert sampler._constant_liar is False
        with Trials(tmp_path, search(3), seed=0) as second:
            assert second.claim()[0].number == 1
            assert second.study.sampler._constant_liar is True


def test_optuna_finds_a_study_by_its_folder_and_an_enqueued_trial_is_tried(tmp_path):
    folder = tmp_path / "tiny-toy-1a2b3c4d"
    run(folder, search(4), most=2)
    study = optuna.load_study(study_name=folder.name, storage=f"sqlite:///{folder / STORAGE}")
    assert study.metric_names == ["perplexity"]
    study.enqueue_trial({"layer_1": 0.4, "layer_2": 0.3, "layer_3": 0.2})
    made = run(folder, search(4))
    assert made[0] == (2, [0.0, 0.4, 0.3, 0.2, 0.0]) and [number for number, _ in made] == [2, 3]
