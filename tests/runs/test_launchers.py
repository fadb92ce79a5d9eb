"""Breaks if workers change a number, outlive the command or lose results, if a failed one
is not named, if a run that another process holds is not waited for, or if a worker makes what
another one made or failed at.
"""

import importlib.util
import json
import os
import pickle
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moe_lab.config.schema import Config, LauncherConfig
from moe_lab.errors import ConfigError, ResultsError, RunHeldError
from moe_lab.methods import get_method
from moe_lab.models.memory import ModelPool
from moe_lab.results.folder import ATTEMPT, RunFolder
from moe_lab.runs import attempts, local_workers, queued_workers
from moe_lab.runs.grid import do
from moe_lab.runs.jobs import Job
from moe_lab.runs.queued_workers import Worker
from tests.support.command import FakeRun, FakeRuns, Forked, install, run_command

CONFIG = Config(launcher=LauncherConfig(name="local", workers=2))
GRID = ("-m", "method=roe", "method.n=2", "seed=0,1,2,3", "task=toy_choice", "limit=3")


def started(folder: Path) -> tuple[Forked, list[int], Path]:
    """The command with two started workers, their processes, and the folder of their output."""
    folder.mkdir()
    keys = ("launcher=local", "launcher.workers=2", f"output_dir={folder / 'outputs'}")
    command = Forked(folder, (*GRID, *keys))

    def both_workers() -> list[int] | None:
        workers = workers_of(command)
        if len(workers) == 2:
            return workers
        return None

    workers = wait_until(both_workers)
    [output] = (folder / "outputs" / "workers").iterdir()
    wait_until(lambda: list(folder.glob("outputs/runs/*/.holder")))
    return command, workers, output


def workers_of(command: Forked) -> list[int]:
    pid = command.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(pid) for pid in children.read_text().split()]


def untimed(text: str) -> list[str]:
    """The words of a command's output without seconds and paths."""
    return re.sub(r"\d+\.\d s|/\S+|─+", "", text).split()


def wait_until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise TimeoutError


def scores(folder: Path) -> dict[str, Any]:
    files = sorted(folder.glob("runs/*/results.json"))
    return {file.parent.name: json.loads(file.read_text())["results"] for file in files}


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_its_runs_to_the_others(capsys, tmp_path):
    command, workers, output = started(tmp_path / "shared")
    os.kill(workers[0], signal.SIGKILL)
    shared = command.ended()
    assert shared.code == 0
    assert "Worker 0 ended with exit code -9" in shared.err
    assert (output / "worker-0.log").exists(), "what it wrote is kept"
    plain = run_command(capsys, *GRID, f"output_dir={tmp_path / 'plain'}")
    assert scores(tmp_path / "shared" / "outputs") == scores(tmp_path / "plain")
    assert len(scores(tmp_path / "plain")) == 5
    assert untimed(shared.out) == untimed(plain.out)
    assert len(untimed(plain.out)) > 50


class FakeWorker:
    """A process that has ended, or runs until it is terminated (code None)."""

    def __init__(self, code: int | None):
        self.code = code

    def terminate(self) -> None:
        self.code = -signal.SIGTERM if self.code is None else self.code

    def wait(self) -> int | None:
        return self.code


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_workers_end_when_their_command_is_gone(number, heeding_signals, tmp_path):
    command, workers, _ = started(tmp_path / "place")
    os.kill(command.process.pid, number)
    command.process.join()
    assert command.process.exitcode == -number
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), seconds=30)


def test_an_interruption_ends_the_workers(monkeypatch):
    started: list[FakeWorker] = []

    def interrupted(worker: FakeWorker) -> int | None:
        if worker.code is None and len(started) == 2:
            started.append(worker)
            raise KeyboardInterrupt
        return worker.code

    workers = [FakeWorker(None), FakeWorker(0)]
    monkeypatch.setattr(FakeWorker, "wait", interrupted)

    def start_next(*_: Any) -> FakeWorker:
        worker = workers[len(started)]
        started.append(worker)
        return worker

    monkeypatch.setattr(local_workers, "start", start_next)
    with pytest.raises(KeyboardInterrupt):
        local_workers.run_local(Path(), CONFIG, [])
    assert [worker.code for worker in workers] == [-signal.SIGTERM, 0]
    workers = [FakeWorker(0), FakeWorker(1)]
    started.clear()
    assert local_workers.run_local(Path(), CONFIG, []) == [0, 1]


def test_each_worker_has_a_gpu_or_a_share_of_the_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: 5)
    assert local_workers.environment(0, count=2, gpus=0)["OMP_NUM_THREADS"] == "2"
    assert local_workers.environment(7, count=8, gpus=0)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert local_workers.environment(0, count=2, gpus=0)["OMP_NUM_THREADS"] == "3", (
        "what the user says"
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [local_workers.environment(i, 3, gpus=2)["CUDA_VISIBLE_DEVICES"] for i in range(3)] == [
        "0",
        "1",
        "0",
    ]
    seen = [
        local_workers.environment(i, 3, gpus=5, gpus_per_worker=2)["CUDA_VISIBLE_DEVICES"]
        for i in range(3)
    ]
    assert seen == ["0,1", "2,3", "0,1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7f")
    assert [local_workers.environment(i, 2, gpus=2)["CUDA_VISIBLE_DEVICES"] for i in range(2)] == [
        "5",
        "GPU-7f",
    ]


@pytest.mark.parametrize("launcher", ["local", "submitit", "ray"])
def test_a_model_is_made_by_no_workers(launcher, monkeypatch):
    method = get_method("pretrain-tiny")
    monkeypatch.setattr(method, "train", lambda self, config: pytest.fail("It trains."))
    config = Config(
        method=method.Config(name="pretrain-tiny"), launcher=LauncherConfig(name=launcher)
    )
    with pytest.raises(ConfigError, match="one model, which workers cannot share"):
        do("run", [config], [], [])


# submitit and Ray

TWO_SEEDS = ("-m", "method=roe", "method.n=2", "seed=0,1", "task=toy_choice", "limit=3")
HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ("launcher=submitit", "launcher.cluster=local"),
        pytest.param(
            ("launcher=ray", "launcher.parameters.num_cpus=0.5"),
            marks=pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed"),
        ),
    ],
    ids=lambda launcher: launcher[0],
)
def test_workers_make_what_one_process_makes(launcher, capsys, tmp_path):
    shared = tmp_path / "shared"
    plain = tmp_path / "plain"
    handler = signal.getsignal(signal.SIGTERM)
    workers = run_command(
        capsys, *TWO_SEEDS, *launcher, "launcher.workers=2", f"output_dir={shared}"
    )
    signal.signal(signal.SIGTERM, handler)  # Ray has one of its own
    ended_alone = run_command(capsys, *TWO_SEEDS, f"output_dir={plain}")
    assert workers.code == ended_alone.code == 0, workers.err
    assert scores(shared) == scores(plain)
    assert len(scores(plain)) == 3
    assert untimed(workers.out) == untimed(ended_alone.out)
    assert not list((shared / "workers").iterdir()), "no worker failed"


NEEDS = [
    ("ray", "launcher=ray"),
    ("submitit", "launcher=submitit"),
    ("peft", "model.peft=adapter"),
    ("peft", "method=soft-prompt"),
    ("peft", "method=prefix-tuning"),
]


@pytest.mark.parametrize(("extra", "override"), NEEDS)
def test_what_needs_a_package_is_refused_without_it(extra, override, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("moe_lab.errors.find_spec", lambda name: None)
    ended = run_command(capsys, override, f"output_dir={tmp_path}")
    assert ended.code == 2
    assert f"{override} needs a package" in ended.err
    assert f"pip install 'moe-lab[{extra}]'" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_job_starts_its_worker_again_after_sigterm_and_is_queued_again_as_it_is(
    tmp_path, monkeypatch
):
    """SLURM sends SIGTERM to all processes of a job, also where the job goes on.

    Broken by a job that is then done.
    """
    workers = iter([FakeWorker(143), FakeWorker(3)])
    monkeypatch.setattr(queued_workers, "start", lambda *_: next(workers))
    assert Worker(tmp_path, ["method=roe"])(0) == 3
    assert next(workers, None) is None
    worker = pickle.loads(pickle.dumps(Worker(tmp_path, ["method=roe"])))
    second_checkpoint = worker.checkpoint(3)
    assert second_checkpoint.function is worker
    assert second_checkpoint.args == (3,)
    assert (worker.folder, worker.argv) == (tmp_path, ["method=roe"])


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["launcher.cluster=pbs"], "pbs"),
        (["launcher.cluster=local", "launcher.parameters.cpus=2"], "cpus"),
    ],
    ids=["cluster", "parameter"],
)
def test_a_wrong_cluster_or_parameter_is_refused(overrides, named, capsys, tmp_path):
    ended = run_command(capsys, "launcher=submitit", *overrides, f"output_dir={tmp_path}")
    assert ended.code == 2
    assert named in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("launcher", ["none", "local"])
def test_parameters_of_jobs_need_a_launcher_of_jobs(launcher):
    with pytest.raises(ConfigError, match=f"no effect with launcher={launcher}"):
        LauncherConfig(name=launcher, parameters={"num_cpus": 2})


# Runs that are shared with other processes

SEEDS = ("-m", "seed=0,1,2")
HELD = "tiny-roe-toy_math-1"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRuns:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(attempts, "PAUSE", 0.0)
    return install(monkeypatch, FakeRuns())


def held_for(runs: FakeRuns, times: int, monkeypatch: pytest.MonkeyPatch, *, done: bool) -> None:
    """Another process holds a run at so many looks, and then has made it, or has died."""
    looks = []

    def check_free(run: FakeRun) -> None:
        if run.run_id == HELD and len(looks) < times:
            looks.append(run)
            raise RunHeldError(f"{HELD} is held by process 7")
        if run.run_id == HELD and done:
            runs.done.add(HELD)

    monkeypatch.setattr(FakeRun, "check_free", check_free)


@pytest.mark.parametrize("done", [True, False], ids=["made by the other", "taken over"])
def test_what_another_process_holds_is_waited_for_last(done, capsys, runs, monkeypatch):
    held_for(runs, 5, monkeypatch, done=done)
    ended = run_command(capsys, *SEEDS)
    assert ended.code == 0
    held_runs = ["tiny-roe-toy_math-0", "tiny-roe-toy_math-2"]
    assert runs.executed == (held_runs if done else [*held_runs, HELD])
    assert ended.err.count(f"Waiting: {HELD} is held by process 7") == 1
    assert "seed=1" in ended.out, "its result is in the table"


def test_without_waiting_it_is_left_out(capsys, runs, monkeypatch):
    held_for(runs, 5, monkeypatch, done=True)
    ended = run_command(capsys, *SEEDS, "wait=false")
    assert ended.code == RunHeldError.exit_code
    assert "Waiting" not in ended.err
    assert "seed=1" not in ended.out
    assert len(runs.executed) == 2


def fail(folder: Path, error: Exception) -> None:
    """A run that fails in this process."""
    folder.mkdir(parents=True)
    with suppress(type(error)), RunFolder(folder, "x").status():
        raise error


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process belongs to a command with workers."""
    monkeypatch.setenv(ATTEMPT, "1")


def test_a_worker_leaves_out_what_others_made_and_failed_at_and_ends_with_its_own_failures(
    capsys, runs, attempt, monkeypatch
):
    monkeypatch.setenv(attempts.WORKER, "1")
    fail(Path("outputs/runs/tiny-roe-toy_math-0"), ResultsError("full"))
    runs.done.add(HELD)
    ended = run_command(capsys, *SEEDS)
    assert runs.executed == ["tiny-roe-toy_math-2"]
    assert not runs.summarized
    assert ended.code == 0, "its command writes the tables and tells of failures"
    assert ended.out == "", "its command writes the tables and tells of failures"
    runs.done.clear()
    runs.errors[HELD] = ResultsError("the disk is full")
    ended = run_command(capsys, *SEEDS)
    assert ended.code == 1
    assert "Error: the disk is full" in ended.err
    assert len(runs.executed) == 2


def test_what_failed_in_a_worker_is_shown_and_tried_again_later(capsys, runs, attempt, monkeypatch):
    fail(Path("outputs/runs") / HELD, ResultsError("the disk is full"))
    ended = run_command(capsys, *SEEDS)
    assert ended.code == 1
    assert f"{HELD}:\nError: the disk is full\n" in ended.err
    assert runs.executed == ["tiny-roe-toy_math-0", "tiny-roe-toy_math-2"]
    for set_attempt in (
        partial(monkeypatch.setenv, ATTEMPT, "2"),
        partial(monkeypatch.delenv, ATTEMPT),
    ):
        set_attempt()  # another command with workers, and one without
        runs.done.discard(HELD)
        assert run_command(capsys, *SEEDS).code == 0
        assert runs.executed.pop() == HELD


def test_what_a_run_waits_for_is_looked_at_before_it_is_tried_again(capsys, runs, tmp_path):
    """Its training, say, which is found out late, while the run is executed."""
    training = RunFolder(tmp_path / "training", "x")
    execute = runs.execute
    tries = []

    def busy(run: FakeRun, models: Any, **_: Any) -> Any:
        if run.run_id == HELD:
            tries.append(run)
            if len(tries) == 1:
                raise RunHeldError("its training is held", training.path)
        return execute(run, models)

    looks = iter([True] * 5 + [False])

    def is_held(folder: RunFolder) -> bool:
        if folder.path != training.path:
            return False
        return next(looks)

    runs.execute = busy  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        install(patch, runs)
        patch.setattr(RunFolder, "is_held", is_held)
        ended = run_command(capsys, *SEEDS)
    assert ended.code == 0
    assert len(tries) == 2
    assert next(looks, None) is None
    assert runs.executed[-1] == HELD, "it is announced once"
    assert ended.err.count(HELD) == 1, "it is announced once"


def test_workers_leave_what_is_timed_to_their_command(capsys, runs, monkeypatch):
    configs = [Config(method=get_method("roe").Config(name="roe"), seed=seed) for seed in (0, 1)]
    jobs = [
        Job(run_config, runs=[runs.prepare(run_config)], timed=run_config.seed == 1)
        for run_config in configs
    ]
    with monkeypatch.context() as patch:
        patch.setenv(attempts.WORKER, "1")
        attempts.run_all(jobs, ModelPool())
    assert runs.executed == ["tiny-roe-toy_math-0"]
    outcomes, failures = attempts.run_all(jobs, ModelPool())
    assert len(outcomes) == 2
    assert not failures
    assert runs.executed[1:] == ["tiny-roe-toy_math-1"]
    assert "[2/2] tiny-roe-toy_math-1" in capsys.readouterr().err
