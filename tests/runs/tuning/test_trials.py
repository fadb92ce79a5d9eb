"""The trials of a study on disk.

Broken by: a trial that is lost, made twice or beyond n_trials, a limit other than the worst,
a dead process waited for, a sampler whose choices depend on where a study was interrupted.
"""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import optuna
import pytest

from moe_lab.errors import ResultsError
from moe_lab.runs.tuning.temperatures import LayerTemperatures
from moe_lab.runs.tuning.trials import STORAGE, Trials, storage_errors
from tests.support.searches import search, value

fork = multiprocessing.get_context("fork")


def run(
    folder: Path, wanted_search: LayerTemperatures, trial_count: int | None = None
) -> list[tuple]:
    """Compute up to `trial_count` of what is missing."""
    made = []
    with Trials(folder, wanted_search, seed=3) as trials:
        while (trial_count is None or len(made) < trial_count) and (
            trial := trials.claim()
        ) is not None:
            temperatures = wanted_search.temperatures(trial)
            trials.tell(trial, value(temperatures))
            made.append((trial.number, temperatures))
    return made


def test_trial_0_is_the_untuned_model_and_n_trials_is_a_total(tmp_path):
    folder = tmp_path / "a folder, with 100%"
    made = run(folder, search(6), trial_count=4)
    assert made[0] == (0, [0.0] * 5)
    assert [number for number, _ in made] == [0, 1, 2, 3]
    for _, temperatures in made:
        assert temperatures[0] == temperatures[-1] == 0
        assert min(temperatures) >= 0
        assert max(temperatures) <= 0.5
    assert [number for number, _ in run(folder, search(6))] == [4, 5]
    assert run(folder, search(6)) == []
    assert [number for number, _ in run(folder, search(8))] == [6, 7]


@pytest.mark.slow
def test_an_enlarged_study_keeps_its_start(tmp_path):
    """Broken by trials that depend on the moment of an interruption, or on a later budget."""
    unbroken = run(tmp_path / "unbroken", search(6)) + run(tmp_path / "unbroken", search(14))
    broken = run(tmp_path / "broken", search(6), trial_count=1) + run(
        tmp_path / "broken", search(6)
    )
    broken += run(tmp_path / "broken", search(14), trial_count=3) + run(
        tmp_path / "broken", search(14)
    )
    assert unbroken == broken
    assert unbroken[2:] != run(tmp_path / "at once", search(14))[2:]


@pytest.mark.slow
def test_a_trial_whose_process_died_is_taken_over_as_it_was(tmp_path):
    run(tmp_path, search(5), trial_count=2)

    def die() -> None:
        trials = Trials(tmp_path, search(5), seed=3).__enter__()
        (tmp_path / "claimed").write_text(str(search(5).temperatures(trials.claim())))
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
    wanted_search = search(14)
    unbroken = run(tmp_path / "a", wanted_search)
    run(tmp_path / "b", wanted_search, trial_count=12)
    with Trials(tmp_path / "b", wanted_search, seed=3) as trials:
        sampler = trials._sampler
        drawn = []

        def killed(number, place):
            if len(drawn) == 2:
                raise KeyboardInterrupt
            drawn.append(place)
            return sampler(number, place)

        trials._sampler = killed
        with pytest.raises(KeyboardInterrupt):
            trials.claim()
        assert len(trials.study.get_trials()[12].params) == 2
    remaining = run(tmp_path / "b", wanted_search)
    assert [number for number, _ in remaining] == [12, 13]
    assert remaining == unbroken[12:]


def test_a_storage_that_cannot_be_used_is_named(tmp_path):
    run(tmp_path, search(2))
    (tmp_path / "storage.db").write_bytes(b"no database at all" * 100)
    message = r"storage\.db could not be read .*\n.*move its folder away"
    with pytest.raises(ResultsError, match=message), storage_errors(tmp_path, None):
        run(tmp_path, search(3))


@pytest.mark.slow
def test_two_processes_share_a_study(tmp_path):

    def work(name: str) -> None:
        made = []
        with Trials(tmp_path, search(30), seed=3) as trials:
            while (trial := trials.claim()) is not None:
                time.sleep(0.02)
                trials.tell(trial, value(search(30).temperatures(trial)))
                made.append(trial.number)
        (tmp_path / name).write_text(" ".join(map(str, made)))

    processes = [fork.Process(target=work, args=(name,)) for name in ("one", "other")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    numbers = (tmp_path / "one").read_text().split() + (tmp_path / "other").read_text().split()
    assert sorted(map(int, numbers)) == list(range(30))
    with Trials(tmp_path, search(30), seed=3) as trials:
        assert trials.claim() is None
        finished = trials.finished()
    assert len(finished) == 30
    assert len({tuple(trial.params.values()) for trial in finished}) == 30


@pytest.mark.slow
def test_a_study_waits_for_a_living_process(tmp_path):
    """The last trial of another worker is not taken: claim() returns only after `tell`."""
    claimed = fork.Event()

    def work() -> None:
        with Trials(tmp_path, search(1), seed=3) as trials:
            trial = trials.claim()
            claimed.set()
            time.sleep(1.5)
            trials.tell(trial, value(search(1).temperatures(trial)))

    other_process = fork.Process(target=work)
    other_process.start()
    assert claimed.wait(60)
    with Trials(tmp_path, search(1), seed=3) as trials:
        assert trials.claim() is None
        assert [trial.number for trial in trials.finished()] == [0]
    other_process.join(60)
    assert other_process.exitcode == 0


def test_of_equal_trials_the_untuned_one_is_best_and_pruned_ones_count_and_are_never_best(tmp_path):
    with Trials(tmp_path / "equal", search(4, metric="accuracy"), seed=0) as trials:
        for score in (0.5, 0.4, 0.5, 0.5):
            trial = trials.claim()
            trials.tell(trial, score)
        assert trials.best().number == 0
    with Trials(tmp_path / "pruned", search(3), seed=0) as trials:
        for score in (1.0, None, 2.0):
            trial = trials.claim()
            if score is None:
                trial.report(0.1, 2)
            trials.tell(trial, score)
        assert len(trials.finished()) == 3
        assert trials.best().number == 0
        assert trials.claim() is None


def test_pruning_begins_after_the_random_trials_and_is_by_the_worst(tmp_path):
    with Trials(tmp_path, search(30), seed=0) as trials:
        for score in [1.2, 1.5, 1.1, 1.3, 1.3, 1.3, 1.3, 1.3, 1.3]:
            trials.tell(trials.claim(), score)
        assert trials.worst() is None
        trials.tell(trials.claim(), 1.4)
        assert trials.worst() == 1.5
        trials.claim().report(9.0, 1)
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
            assert second.claim().number == 1
            assert second.study.sampler._constant_liar is True


def test_optuna_finds_a_study_by_its_folder_and_an_enqueued_trial_is_tried(tmp_path):
    folder = tmp_path / "tiny-toy-1a2b3c4d"
    run(folder, search(4), trial_count=2)
    study = optuna.load_study(study_name=folder.name, storage=f"sqlite:///{folder / STORAGE}")
    assert study.metric_names == ["perplexity"]
    study.enqueue_trial({"layer_1": 0.4, "layer_2": 0.3, "layer_3": 0.2})
    made = run(folder, search(4))
    assert made[0] == (2, [0.0, 0.4, 0.3, 0.2, 0.0])
    assert [number for number, _ in made] == [2, 3]
