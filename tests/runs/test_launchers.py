"""Breaks if workers change a number, outlive the command or lose results, or if a failed one is not named."""

import importlib.util
import json
import os
import pickle
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moe_lab.config.schema import Config, LauncherConfig, ModelConfig
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.base import Base
from moe_lab.runs import launchers
from moe_lab.runs.jobs import Job
from moe_lab.runs.launchers import Worker, log_file
from moe_lab.runs.plan import Plan, Row
from tests.support.command import FakeRun, Forked, run_command

CONFIG = Config(launcher=LauncherConfig(name="local", workers=2))
GRID = ("-m", "method=roe", "method.n=2", "seed=0,1,2,3", "task=toy_choice", "limit=3")


def started(folder: Path) -> tuple[Forked, list[int], Path]:
    """The command with two workers that have begun, the workers' processes, and the folder of their output."""
    folder.mkdir()
    keys = ("launcher=local", "launcher.workers=2", f"output_dir={folder / 'outputs'}")
    command = Forked(folder, (*GRID, *keys))
    workers = wait_until(lambda: len(found := workers_of(command)) == 2 and found)
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
        if found := condition():
            return found
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
    assert shared.code == 0 and "Worker 0 ended with exit code -9" in shared.err
    assert (output / "worker-0.log").exists(), "what it wrote is kept"
    plain = run_command(capsys, *GRID, f"output_dir={tmp_path / 'plain'}")
    assert scores(tmp_path / "shared" / "outputs") == scores(tmp_path / "plain")
    assert len(scores(tmp_path / "plain")) == 5
    assert untimed(shared.out) == untimed(plain.out) and len(untimed(plain.out)) > 50


@pytest.mark.slow
def test_workers_end_with_a_command_that_is_killed(tmp_path):
    command, workers, _ = started(tmp_path / "out")
    command.process.kill()
    command.process.join()
    wait_until(lambda: not any(alive(worker) for worker in workers), seconds=60)
    assert len(scores(tmp_path / "out" / "outputs")) < 5, "they ended with it, and not with their work"


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


class FakeWorker:
    """A process that has ended, or runs until it is terminated (code None)."""

    def __init__(self, code: int | None):
        self.code = code

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.code = -signal.SIGTERM if self.code is None else self.code

    def wait(self) -> int | None:
        return self.code


def run_two(monkeypatch: pytest.MonkeyPatch, codes: Sequence[int | None], wait: Any) -> list[int]:
    """`run_local` with workers that end with these codes."""
    started = [FakeWorker(code) for code in codes]
    left = iter(started)
    monkeypatch.setattr(launchers, "start", lambda *_: next(left))
    try:
        return launchers.run_local(Path(), CONFIG, [], wait)
    finally:
        assert all(worker.code is not None for worker in started)


def test_an_interruption_ends_the_workers(monkeypatch):
    def interrupted(workers: int, alive: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_two(monkeypatch, [None, 0], interrupted)
    assert run_two(monkeypatch, [0, 1], lambda count, alive: count) == [0, 1]


def test_each_worker_has_a_gpu_or_a_share_of_the_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: 5)
    assert launchers.environment(0, count=2, gpus=0)["OMP_NUM_THREADS"] == "2"
    assert launchers.environment(7, count=8, gpus=0)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert launchers.environment(0, count=2, gpus=0)["OMP_NUM_THREADS"] == "3", "what the user says"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [launchers.environment(i, 3, gpus=2)["CUDA_VISIBLE_DEVICES"] for i in range(3)] == ["0", "1", "0"]
    seen = [launchers.environment(i, 3, gpus=5, each=2)["CUDA_VISIBLE_DEVICES"] for i in range(3)]
    assert seen == ["0,1", "2,3", "0,1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7f")
    assert [launchers.environment(i, 2, gpus=2)["CUDA_VISIBLE_DEVICES"] for i in range(2)] == ["5", "GPU-7f"]


# GPUs of each worker, by the planned bytes of the runs


def plan_of(**sizes: int | None) -> Any:
    """A plan with a row for each model; None: an embedded one."""
    plan = Plan([])
    for name, size in sizes.items():
        plan.rows.append(Row("-", CONFIG, [name, "roe", "gsm8k", "0"], 1, 1, 1.0, "missing", size))
    return lambda: plan


@pytest.mark.parametrize(
    ("sizes", "each"),
    [
        ({"tiny": None}, 1),
        ({"olmoe": 15 * 10**9}, 1),
        ({"olmoe": 15 * 10**9, "mixtral": 95 * 10**9}, 2),
        ({"just": 72 * 10**9}, 1),
        ({"more": 72 * 10**9 + 1}, 2),
    ],
)
def test_a_worker_has_the_gpus_that_its_largest_run_takes(monkeypatch, sizes, each):
    monkeypatch.setattr(launchers, "gpu_memory", lambda: [80 * 10**9] * 8)
    config = Config(launcher=LauncherConfig(name="local"))
    assert launchers.gpus_of_worker(config, plan_of(**sizes)) == each
    assert launchers.gpus_of_worker(replace(config, device="cpu"), plan_of(**sizes)) == 1
    config.launcher.gpus_per_worker = 4
    assert launchers.gpus_of_worker(config, None) == 4


def test_what_fits_nowhere_is_refused_with_the_number_of_gpus(monkeypatch):
    monkeypatch.setattr(launchers, "gpu_memory", lambda: [80 * 10**9] * 2)
    config = Config(launcher=LauncherConfig(name="local"))
    with pytest.raises(ConfigError, match=r"grok roe gsm8k takes 300.0 GB .*: 5 GPUs of 80 GB, and 2 are"):
        launchers.gpus_of_worker(config, plan_of(grok=300 * 10**9))
    with pytest.raises(ConfigError, match="gpus_per_worker=3: 2 are visible"):
        launchers.gpus_of_worker(Config(launcher=LauncherConfig(name="local", gpus_per_worker=3)), None)


@pytest.mark.parametrize("given", [[], ["model.device_map=auto"]])
def test_models_of_several_gpus_are_spread_over_them(monkeypatch, tmp_path, given):
    started = []

    def start(folder: Path, config: Config, argv: list[str], wait: Any) -> list[int]:
        started.append((config.launcher.gpus_per_worker, argv))
        return [0]

    monkeypatch.setattr(launchers, "gpu_memory", lambda: [80 * 10**9] * 4)
    monkeypatch.setitem(launchers.LAUNCHERS, "local", start)
    model = ModelConfig(device_map="auto" if given else None)
    method, launcher = Base.Config(name="base"), LauncherConfig(name="local")
    config = Config(launcher=launcher, method=method, model=model, output_dir=str(tmp_path))
    monkeypatch.setattr(launchers, "Plan", lambda jobs: plan_of(mixtral=95 * 10**9)())
    with launchers.working(config, ["launcher=local", *given], [Job(config)]) as models:
        assert models._device_map == "auto", "this process computes what the workers leave"
    assert started == [(2, ["model.device_map=auto"])]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"device": "cuda"}, "device=cuda: a worker with several GPUs"),
        (
            {"method": get_method("finetune-freeze").Config(name="finetune-freeze")},
            "finetune-freeze trains on one GPU",
        ),
    ],
)
def test_what_several_gpus_cannot_run_is_refused(monkeypatch, tmp_path, keys, says):
    monkeypatch.setattr(launchers, "gpu_memory", lambda: [80 * 10**9] * 4)
    monkeypatch.setitem(launchers.LAUNCHERS, "local", lambda *_: pytest.fail("started"))
    launcher = LauncherConfig(name="local", gpus_per_worker=2)
    config = replace(
        Config(method=Base.Config(name="base"), launcher=launcher, output_dir=str(tmp_path)), **keys
    )
    with pytest.raises(ConfigError, match=says), launchers.working(config, [], [Job(config)]):
        pass


# What the command shows of its workers


def test_workers_that_failed_are_named_with_their_last_lines(capsys, tmp_path):
    log_file(tmp_path, 1).write_text("".join(f"line {i}\n" for i in range(9)))
    launchers.print_failed(tmp_path, [0, 1, 2, 3])
    err = capsys.readouterr().err
    ended = f"Worker 1 ended with exit code 1 ({tmp_path / 'worker-1.log'}):\n"
    assert f"{ended}line 4\nline 5\nline 6\nline 7\nline 8\nWorker 2" in err
    assert err.endswith("It printed nothing.\n")
    assert "Worker 0" not in err and "Worker 3" not in err, "3: another process holds a run"


def test_stored_runs_of_the_command_are_counted(monkeypatch):
    """Runs after a study are known when it is finished. Runs whose time is measured are not the workers'."""
    shown: list[tuple[Any, ...]] = []

    class Shown(nullcontext["Shown"]):
        def __init__(self, total: int, what: str, unit: str, initial: int):
            super().__init__(self)
            shown.append((total, what, unit, initial))

        def at(self, done: int, note: str | None) -> None:
            shown.append((done, note))

    config = Config(method=get_method("roe").Config(name="roe"), seeds=2)
    runs = [FakeRun(replace(config, seed=seed)) for seed in range(4)]
    runs[0].done = True
    finished: list[Any] = []
    study: Any = SimpleNamespace(profile=lambda: finished, folder=Path("study"))
    tuned = Job(config, studies=[study])
    monkeypatch.setattr(Job, "runs_after", lambda job: runs[1:3])
    jobs = [Job(config, runs=runs[:1]), tuned, Job(config, runs=runs[3:], timed=True)]

    def end_one() -> bool:
        if not finished:
            finished.append("profile")
        else:
            next(run for run in runs if not run.done).done = True
        return not all(run.done for run in runs[:3])

    monkeypatch.setattr(launchers, "PAUSE", 0.0)
    monkeypatch.setattr(launchers, "Progress", Shown)
    launchers.wait_for(jobs, 2, end_one)
    assert shown == [(3, "2 workers", "run", 1), (1, None), (2, None)]


# submitit and Ray

TWO_SEEDS = ("-m", "method=roe", "method.n=2", "seed=0,1", "task=toy_choice", "limit=3")
HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ("launcher=submitit", "launcher.cluster=local"),
        pytest.param(
            ("launcher=ray", "+launcher.parameters.num_cpus=0.5"),
            marks=pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed"),
        ),
    ],
    ids=lambda launcher: launcher[0],
)
def test_workers_make_what_one_process_makes(launcher, capsys, tmp_path):
    shared, plain = tmp_path / "shared", tmp_path / "plain"
    own = signal.getsignal(signal.SIGTERM)
    workers = run_command(capsys, *TWO_SEEDS, *launcher, "launcher.workers=2", f"output_dir={shared}")
    signal.signal(signal.SIGTERM, own)  # Ray has one of its own
    alone = run_command(capsys, *TWO_SEEDS, f"output_dir={plain}")
    assert workers.code == alone.code == 0, workers.err
    assert scores(shared) == scores(plain) and len(scores(plain)) == 3
    assert untimed(workers.out) == untimed(alone.out)
    assert not list((shared / "workers").iterdir()), "no worker failed"


NEEDS = {"ray": ["launcher=ray"], "submitit": ["launcher=submitit"], "wandb": ["logger=wandb"]}
NEEDS |= {"peft": ["model.peft=adapter", "method=soft-prompt", "method=prefix-tuning"]}


@pytest.mark.parametrize(("extra", "override"), [(key, one) for key, own in NEEDS.items() for one in own])
def test_what_needs_a_package_is_refused_without_it(extra, override, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("moe_lab.errors.find_spec", lambda name: None)
    ended = run_command(capsys, override, f"output_dir={tmp_path}")
    assert ended.code == 2 and f"{override} needs a package" in ended.err
    assert f"pip install 'moe-lab[{extra}]'" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_job_starts_its_worker_again_after_sigterm_and_is_queued_again_as_it_is(tmp_path, monkeypatch):
    """SLURM sends SIGTERM to all processes of a job, also where the job goes on. Broken by a job that is then done."""
    workers = iter([FakeWorker(143), FakeWorker(3)])
    monkeypatch.setattr(launchers, "start", lambda *_: next(workers))
    assert Worker(tmp_path, ["method=roe"])(0) == 3 and next(workers, None) is None
    worker = pickle.loads(pickle.dumps(Worker(tmp_path, ["method=roe"])))
    again = worker.checkpoint(3)
    assert again.function is worker and again.args == (3,)
    assert (worker.folder, worker.argv) == (tmp_path, ["method=roe"])


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["launcher=submitit", "launcher.cluster=pbs"], "pbs"),
        (["launcher=submitit", "launcher.cluster=local", "+launcher.parameters.cpus=2"], "cpus"),
    ],
)
def test_a_wrong_parameter_is_refused(typed, expected, capsys, tmp_path):
    ended = run_command(capsys, *typed, f"output_dir={tmp_path}")
    assert ended.code == 2 and expected in ended.err and "Traceback" not in ended.err
