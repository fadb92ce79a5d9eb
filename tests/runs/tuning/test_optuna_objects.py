"""Samplers, pruners and databases of Optuna.

The keys are tuning.sampler, tuning.pruner, tuning.storage and tuning.timeout.

Broken by: a sampler whose choices depend on where a study was interrupted, one that is refused
without a reason or imports code from anywhere, a pruner that is never asked, two machines that
compute one trial, a trial that stays lost, a password in a file, a study without end.
"""

import multiprocessing
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import optuna
import pytest

from moe_lab.config.schema import TuningConfig
from moe_lab.errors import ConfigError
from moe_lab.runs.tuning import shared_storage
from moe_lab.runs.tuning.objective import Perplexity, Pruned
from moe_lab.runs.tuning.optuna_objects import check_objects, pruner_of, storage_of
from moe_lab.runs.tuning.shared_storage import SharedTrials, check_storage
from moe_lab.runs.tuning.trials import Trials
from moe_lab.runs.tuning.tune import tied_note
from tests.support.command import run_command
from tests.support.searches import search, value

fork = multiprocessing.get_context("fork")
BOUNDS = {"first": (0.0, 1.0), "second": (0.0, 1.0)}
NOT_RUN = {
    "BaseGASampler": "no sampler",
    "BruteForceSampler": "needs steps, and temperatures have none",
    "BaseSampler": "no sampler",
    "GridSampler": "ends a study itself",
    "PartialFixedSampler": "needs a sampler as argument",
    "NSGAIIISampler": "of several objectives",
}


def target(name: str, module: str = "optuna.samplers", **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{module}.{name}", **arguments}


def parameters_of(
    folder: Path, sampler: dict[str, Any], stops: list[int]
) -> list[dict[str, float]]:
    """The parameters of ten trials of a study that is interrupted after these numbers of trials."""
    with_sampler = replace(search(10), sampler=sampler)
    for stop in [*stops, 10]:
        with Trials(folder, with_sampler, seed=3) as trials:
            while len(trials.finished()) < stop:
                trial = trials.claim()
                trials.tell(trial, value(with_sampler.temperatures(trial)))
    return [trial.params for trial in trials.finished()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["CmaEsSampler", "NSGAIISampler", "GPSampler", "QMCSampler", "TPESampler"]
)
def test_an_interrupted_study_draws_what_an_unbroken_one_draws(name, tmp_path):
    more = {"multivariate": True} if name == "TPESampler" else {}
    sampler = target(name, **more)
    unbroken = parameters_of(tmp_path / "unbroken", sampler, [])
    broken = parameters_of(tmp_path / "broken", sampler, [1, 4, 5, 8])
    assert broken == unbroken
    assert unbroken != parameters_of(tmp_path / "plain", {}, [])


def test_cma_es_is_optunas(tmp_path):
    """The class draws all parameters at once, from the second trial of a known space on."""
    with_sampler = replace(search(6), sampler=target("CmaEsSampler", sigma0=0.1))
    with Trials(tmp_path, with_sampler, seed=3) as trials:
        for _ in range(6):
            trial = trials.claim()
            trials.tell(trial, value(with_sampler.temperatures(trial)))
        attributes = [trial.system_attrs for trial in trials.study.trials]
        assert isinstance(trials.study.sampler, optuna.samplers.CmaEsSampler)
    assert any("cma:generation" in names for names in map(str, attributes))


@pytest.mark.parametrize("name", sorted(set(optuna.samplers.__all__)))
def test_every_sampler_of_optuna_runs_or_is_named_here(name):
    if name in NOT_RUN or not name.endswith("Sampler"):
        return
    check_objects(target(name), {}, [], BOUNDS)


@pytest.mark.parametrize("name", sorted(set(optuna.pruners.__all__)))
def test_every_pruner_of_optuna_is_made(name):
    arguments = {
        "PatientPruner": {"wrapped_pruner": None, "patience": 2},
        "PercentilePruner": {"percentile": 25.0},
        "ThresholdPruner": {"upper": 9.0},
        "WilcoxonPruner": {"p_threshold": 0.1},
    }
    if name != "BasePruner":
        settings = {"_target_": f"optuna.pruners.{name}", **arguments.get(name, {})}
        assert isinstance(pruner_of(settings, []), optuna.pruners.BasePruner)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ({"_target_": "os.system"}, "only classes of optuna, optunahub"),
        (target("CmaEsSamler"), "Did you mean 'CmaEsSampler'"),
        (target("CmaEsSampler", popsize=0), "popsize must be non-zero"),
        ({"_target_": "optuna.nothing.Sampler"}, "No module named 'optuna.nothing'|Are you sure"),
        (target("CmaEsSampler", sigma=0.1), "Unknown argument .*sigma.*Did you mean 'sigma0'"),
        (target("CmaEsSampler", seed=0), "tuning.sampler.seed is not taken"),
        ({"sigma0": 0.1}, "tuning.sampler._target_ is missing"),
        ({"_target_": "optuna.pruners.MedianPruner"}, "is no BaseSampler"),
        (
            target("NSGAIISampler", crossover={"_target_": "subprocess.Popen"}),
            "crossover._target_=subprocess.Popen: only classes of",
        ),
        (target("GridSampler"), "search_space"),
        (target("GridSampler", search_space={"first": [0.0], "second": [0.0]}), "ends a study"),
        (target("TPESampler", gamma=5), "'int' object is not callable"),
    ],
    ids=str,
)
def test_a_sampler_that_cannot_run_is_refused(sampler, message):
    with pytest.raises(ConfigError, match=message):
        check_objects(sampler, {}, [], BOUNDS)


def test_a_missing_package_shows_before_the_study(tmp_path):
    """The sampler asks for it at the second trial, as Optuna's do."""
    (tmp_path / "late_7391.py").write_text(
        "import optuna\n"
        "class Late(optuna.samplers.RandomSampler):\n"
        "    def sample_relative(self, study, trial, space):\n"
        "        if trial.number:\n"
        "            import absent_7391\n"
        "        return {}\n"
    )
    with pytest.raises(ConfigError, match="tuning.sampler: .*absent_7391"):
        check_objects({"_target_": "late_7391.Late"}, {}, [str(tmp_path)], BOUNDS)


def test_a_class_of_the_config_dir_is_made_and_its_code_counts(tmp_path):
    file = tmp_path / "mine_7391.py"
    file.write_text("import optuna\nclass Mine(optuna.samplers.RandomSampler):\n    pass\n")
    sampler = {"_target_": "mine_7391.Mine"}
    with pytest.raises(ConfigError, match="only classes of"):
        check_objects(sampler, {}, [], BOUNDS)
    check_objects(sampler, {}, [str(tmp_path)], BOUNDS)
    with_sampler = replace(search(5), sampler=sampler, class_folders=[str(tmp_path)])
    before = with_sampler.identity
    file.write_text(file.read_text() + "# changed\n")
    assert with_sampler.identity != before


def test_the_identity_of_a_search_without_them_is_as_before():
    assert not {"sampler", "pruner", "class_folders", "code"} & set(search(5).identity)
    given = replace(search(5), sampler=target("CmaEsSampler"))
    assert given.identity != search(5).identity
    assert given.label == "CmaEsSampler"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "random", "sampler": target("CmaEsSampler")}, "Use tuning=tpe"),
        ({"name": "uniform", "pruner": {"_target_": "x"}}, "prunes no trial"),
        ({"name": "none", "timeout": 3.0}, "no effect without a study"),
        ({"name": "tpe", "timeout": 0.0}, "above 0"),
    ],
    ids=str,
)
def test_keys_without_an_effect_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        TuningConfig(**settings)


# The objective


class ThreeAnswers(Perplexity):
    """Three documents of two tokens each, with given negative log-likelihoods."""

    def __init__(self, losses: list[float], reports_all: bool):
        self.kind = "loglikelihood"
        self.requests = [None] * 3  # type: ignore[list-item]
        self.tokens = [2, 2, 2]
        self.reports_all = reports_all
        self.losses = losses

    def answer(self, kind: str, requests: Any, on_answer: Any) -> None:
        for number, loss in enumerate(self.losses):
            on_answer(number, (-loss, True))


def test_a_pruner_gets_a_value_after_each_document_but_the_last():
    metric = ThreeAnswers([2.0, 4.0, 6.0], reports_all=True)
    reported = []
    metric(metric, None, lambda value, count: reported.append((round(value, 3), count)))
    assert reported == [(2.718, 1), (4.482, 2)], "exp of 2 / 2 and of 6 / 4"

    def refuse(value: float, count: int) -> None:
        raise Pruned

    with pytest.raises(Pruned):
        metric(metric, None, refuse)
    plain = ThreeAnswers([2.0, 4.0, 6.0], reports_all=False)
    reported.clear()
    plain(plain, None, lambda value, count: reported.append((value, count)))
    assert reported == []


STUDY = (
    "tuning=tpe",
    "tuning.n_trials=8",
    "tuning.num_samples=6",
    "tuning.metric=perplexity",
    "method.n=2",
    "limit=2",
    "seeds=1",
)


@pytest.mark.slow
def test_the_command_with_a_pruner_a_sampler_and_a_database(tmp_path, capsys):
    database = tmp_path / "trials.db"
    run = run_command(
        capsys,
        *STUDY,
        "tuning.sampler._target_=optuna.samplers.CmaEsSampler",
        "tuning.sampler.sigma0=0.2",
        "tuning.pruner._target_=optuna.pruners.PercentilePruner",
        "tuning.pruner.percentile=10.0",
        "tuning.pruner.n_startup_trials=2",
        f"tuning.storage=sqlite:///{database}",
        f"output_dir={tmp_path}",
    )
    assert run.code == 0, run.err
    [folder] = (tmp_path / "studies").iterdir()
    study = optuna.load_study(study_name=folder.name, storage=f"sqlite:///{database}")
    states = [trial.state.name for trial in study.trials]
    assert len(states) == 8
    assert states[0] == "COMPLETE"
    assert "PRUNED" in states
    assert not (folder / "storage.db").exists()
    assert "tuning: CmaEsSampler" in (folder / "best.yaml").read_text()
    [result] = run.results[-1:]
    assert result["moe_lab"]["tuning"]["tuning"] == "CmaEsSampler"


@pytest.mark.slow
def test_a_timeout_ends_a_study_and_a_longer_one_continues_it(tmp_path, capsys):
    folder = f"output_dir={tmp_path}"
    short = run_command(capsys, *STUDY, "tuning.timeout=0.01", folder)
    assert short.code == 0, short.err
    [study] = (tmp_path / "studies").iterdir()
    lines = (study / "trials.csv").read_text().splitlines()
    first_trials = len(lines) - 1
    assert 1 <= first_trials < 8
    again = run_command(capsys, *STUDY, "tuning.timeout=0.01", folder)
    assert again.code == 0
    assert len((study / "trials.csv").read_text().splitlines()) == len(lines)
    whole = run_command(capsys, *STUDY, folder)
    assert whole.code == 0
    assert len((study / "trials.csv").read_text().splitlines()) == 9


def test_a_study_whose_trials_tie_says_so(tmp_path):
    class Tied:
        search = search(4, metric="accuracy")

    with Trials(tmp_path, Tied.search, seed=0) as trials:
        trials.tell(trials.claim(), 0.5)
        assert tied_note(Tied, trials) is None
        trials.tell(trials.claim(), 0.5)
        note = tied_note(Tied, trials)
        assert note is not None
        assert "all 2 trials have the accuracy 0.5" in note
        assert "tuning.metric=perplexity" in note
        trials.tell(trials.claim(), 0.6)
        assert tied_note(Tied, trials) is None


# A storage that machines share

Storage = str | dict[str, Any]


def shared(folder: Path, storage: Storage, n_trials: int, **more: Any) -> SharedTrials:
    """The trials as a machine sees them whose folder no other one has."""
    wanted_search = replace(search(n_trials), **more)
    return SharedTrials(folder, wanted_search, 3, storage)


def compute(folder: Path, storage: Storage, both: Any, n_trials: int, **more: Any) -> None:
    """Compute what no other machine computes, from when `both` have come on, and write the
    numbers."""
    numbers = []
    with shared(folder, storage, n_trials, **more) as trials:
        both.wait(60)
        while (trial := trials.claim()) is not None:
            temperatures = trials.search.temperatures(trial)
            trials.tell(trial, value(temperatures))
            numbers.append(trial.number)
    (folder / "numbers").write_text(" ".join(map(str, numbers)))


def check_two_machines(folder: Path, storage: Storage) -> None:
    """Two processes, each with a folder of its own, compute 30 trials of CMA-ES together."""
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    both = fork.Barrier(2)
    processes = []
    for name in ("a", "b"):
        place = folder / name / "x"
        place.mkdir(exist_ok=True)
        arguments = (place, storage, both, 30)
        more = {"sampler": target("CmaEsSampler")}
        processes.append(fork.Process(target=compute, args=arguments, kwargs=more))
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    first = (folder / "a" / "x" / "numbers").read_text().split()
    second = (folder / "b" / "x" / "numbers").read_text().split()
    assert sorted(map(int, [*first, *second])) == list(range(30))
    assert first != []
    assert second != []
    opened = storage if isinstance(storage, str) else storage_of(storage, [])
    study = optuna.load_study(study_name="x", storage=opened)
    assert all(value == 0.0 for value in study.trials[0].params.values()), "the base model"
    complete = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    assert len({str(trial.params) for trial in complete}) == 30


@pytest.mark.slow
def test_two_machines_share_a_study_in_sqlite(tmp_path):
    check_two_machines(tmp_path, f"sqlite:///{tmp_path}/trials.db")


@pytest.mark.slow
def test_two_machines_share_a_study_in_a_journal(tmp_path):
    check_two_machines(tmp_path, journal(tmp_path))


def journal(folder: Path) -> Storage:
    """Optuna's storage for file systems on which SQLite is not safe."""
    file = target("journal.JournalFileBackend", "optuna.storages", file_path=f"{folder}/trials.log")
    return target("JournalStorage", "optuna.storages", log_storage=file)


@pytest.fixture
def postgres(tmp_path) -> Iterator[str]:
    """A server on a socket in a folder, as a user that is not root; skipped without it."""
    initdb = shutil.which("initdb") or shutil.which("/usr/lib/postgresql/15/bin/initdb")
    if initdb is None or os.geteuid() != 0:
        pytest.skip("needs PostgreSQL, and root to start it as another user")
    user = pwd.getpwnam("nobody")
    folder = Path("/tmp", f"moe_lab-postgres-{os.getpid()}")
    folder.mkdir()
    os.chown(folder, user.pw_uid, user.pw_gid)

    def as_nobody(*words: str) -> None:
        subprocess.run(
            words, check=True, capture_output=True, user="nobody", cwd=folder, env={"LC_ALL": "C"}
        )

    ctl = str(Path(initdb).resolve().parent / "pg_ctl")
    data = str(folder / "data")
    as_nobody(initdb, "-D", data, "-U", "me", "--auth=trust")
    options = f"-k {folder} -c listen_addresses=''"
    as_nobody(ctl, "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"postgresql+psycopg2://me@/postgres?host={folder}"
    finally:
        as_nobody(ctl, "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder)


@pytest.mark.slow
def test_two_machines_share_a_study_in_postgresql(postgres, tmp_path):
    check_two_machines(tmp_path, postgres)


@pytest.mark.parametrize("kind", ["database", "journal"])
def test_a_trial_whose_machine_fell_silent_is_taken_over_as_it_was(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(shared_storage, "HEARTBEAT", 0.1)
    monkeypatch.setattr(shared_storage, "SILENCE", 0.5)
    url = journal(tmp_path) if kind == "journal" else f"sqlite:///{tmp_path}/trials.db"
    with shared(tmp_path / "a" / "x", url, 2) as silent:
        silent.tell(silent.claim(), 1.0)
        lost = silent.claim()
        parameters = dict(lost.params)
        with shared(tmp_path / "b" / "x", url, 3) as other:
            started = time.monotonic()
            other.tell(other.claim(), 0.5)  # trial 2, since a machine computes trial 1
            time.sleep(0.6)
            assert other._abandoned() is None
            silent._end()  # as if the process had died: its heart no longer beats
            taken = other.claim()
            assert time.monotonic() - started > 1.1
            assert (taken.number, taken.params) == (1, parameters)
            other.tell(taken, 2.0)
            silent.tell(lost, 3.0)  # it was not dead: the first value stays
            assert [trial.value for trial in other.study.trials] == [1.0, 2.0, 0.5]
            assert other.claim() is None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("trials.db", "is no URL of a database"),
        ("nosql://x", "is no URL of a database"),
        ("postgresql+psycopg2://me:secret7391@host/db", "has a password"),
        ("postgresql+psycopg2://host:port/db", "is no URL of a database"),
        ("postgresql+psycopg2://host/db?user=me&password=secret7391", "has a password"),
        ("mysql+nosuchdriver://me@host/db", "is no URL"),
        ("mysql+mysqldb://me@host/db", "a driver that is not installed: No module named 'MySQLdb'"),
        ("sqlite://", "in the memory of one process"),
        ("sqlite:///:memory:", "in the memory of one process"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused(url, message):
    for storage in (url, target("RDBStorage", "optuna.storages", url=url)):
        with pytest.raises(ConfigError, match=message) as raised:
            check_storage(storage, [])
        assert "secret7391" not in str(raised.value)


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ({"_target_": "os.system", "command": "ls"}, "only classes of optuna"),
        ({"_target_": "optuna.storages.JournalStorag"}, "Did you mean 'JournalStorage'"),
        ({"_target_": "optuna.storages.GrpcStorageProxy", "prt": 1}, "Did you mean 'port'"),
        ({"_target_": "optuna.storages.InMemoryStorage"}, "the memory of one process"),
        (
            {
                "_target_": "optuna.storages.JournalStorage",
                "log_storage": {
                    "_target_": "optuna.storages.journal.JournalRedisBackend",
                    "url": "redis://me:secret7391@host:6379/0",
                },
            },
            "log_storage.url has a password",
        ),
        (
            {
                "_target_": "optuna.storages.RDBStorage",
                "url": "sqlite:////tmp/x.db",
                "heartbeat_interval": 9,
            },
            "heartbeat_interval is not taken",
        ),
    ],
)
def test_a_storage_that_cannot_be_used_is_refused(storage, message):
    with pytest.raises(ConfigError, match=message) as raised:
        check_storage(storage, [])
    assert "secret7391" not in str(raised.value)


def test_every_argument_of_the_database_is_taken_or_refused():
    taken = {"url", "engine_kwargs", "skip_compatibility_check", "skip_table_creation"}
    parameters = set(signature(optuna.storages.RDBStorage).parameters)
    assert parameters == taken | set(shared_storage.REFUSED)


def test_a_database_that_does_not_answer_is_named(tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/absent/trials.db"
    run = run_command(capsys, *STUDY, f"tuning.storage={url}", f"output_dir={tmp_path}/out")
    assert f"tuning.storage={url} could not be read or written: unable to open" in run.err
    assert "Free some disk space" not in run.err


def test_the_password_comes_from_the_environment_alone(tmp_path, monkeypatch):
    monkeypatch.setenv(shared_storage.PASSWORD, "secret7391")
    urls = []

    def record(settings: dict[str, Any], dirs: list[str]) -> Any:
        urls.append(settings["url"])
        return optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/trials.db")

    monkeypatch.setattr(shared_storage, "storage_of", record)
    url = "postgresql+psycopg2://me@host/db"
    with shared(tmp_path / "x", url, 1) as trials:
        trials.tell(trials.claim(), 1.0)
    assert urls == ["postgresql+psycopg2://me:secret7391@host/db"]
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert b"secret7391" not in file.read_bytes(), file
