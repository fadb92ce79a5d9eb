"""`launcher=`: processes that run the same command line without `launcher`, and share its runs by their locks.

The command waits for them. Then it computes what they left, if anything, and writes the tables.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from moe_lab.config.overrides import LAUNCHER
from moe_lab.config.progress import Progress
from moe_lab.config.schema import Config
from moe_lab.errors import TERMINATED, ConfigError, RunHeldError, need_package, reading
from moe_lab.methods import get_method
from moe_lab.methods.method import TrainingMethod, refuse
from moe_lab.models.distributed import num_processes
from moe_lab.models.memory import ModelPool
from moe_lab.results.folder import ATTEMPT, check_writable
from moe_lab.runs import STARTER
from moe_lab.runs.attempts import PAUSE, steps_of
from moe_lab.runs.budget import GIGABYTE, gpu_memory, gpus_for
from moe_lab.runs.jobs import Job, distinct_runs
from moe_lab.runs.plan import Plan

WORKERS = 2
"""Their number where none is given and there is no GPU."""


@contextmanager
def working(config: Config, argv: Sequence[str], jobs: Sequence[Job]) -> Iterator[ModelPool]:
    """Let workers compute the jobs of a command line, if it has a launcher. Yields the pool for what they leave.

    What failed in a worker is not tried again inside the context; what workers left because they died is. The folder
    with their output is kept if one failed. Raises ConfigError for a command that workers cannot share.
    """
    if config.launcher.name == "none":
        yield ModelPool()
        return
    if config.launcher.name == "local":
        each = gpus_of_worker(config, lambda: Plan(jobs))
        config = replace(config, launcher=replace(config.launcher, gpus_per_worker=each))
    check_writable(config.output_dir)
    attempt = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder = Path(config.output_dir).absolute() / "workers" / attempt
    folder.mkdir(parents=True)
    words = [word for word in argv if not word.startswith(LAUNCHER)]
    if spread := (config.launcher.gpus_per_worker or 1) > 1:
        words += _spread([job.config for job in jobs])
    os.environ[ATTEMPT] = attempt
    try:
        codes = LAUNCHERS[config.launcher.name](folder, config, words, partial(wait_for, jobs))
        print_failed(folder, codes)
        yield ModelPool("auto" if spread else None)
    finally:
        del os.environ[ATTEMPT]
    if not any(map(_failed, codes)):
        shutil.rmtree(folder)


def wait_for(jobs: Sequence[Job], workers: int, alive: Callable[[], object]) -> None:
    """Return when no worker is alive. Shows how many runs of the jobs are stored."""
    jobs = [job for job in jobs if not job.timed]
    total = len(distinct_runs(jobs)) + sum(job.coming for job in jobs if not job.runs)
    done: set[str] = set()

    def stored() -> int:
        for job in jobs:  # runs after a study are known when it is finished
            if not job.runs and not job.trainings and all(study.profile() for study in job.studies):
                job.runs = job.runs_after()
        done.update(
            step.name for job in jobs for step in steps_of(job) if step.name not in done and step.stored
        )
        return len(done)

    with Progress(total, f"{workers} workers", "run", initial=stored()) as progress:
        while alive():
            progress.at(stored(), None)
            time.sleep(PAUSE)


def print_failed(folder: Path, codes: Sequence[int]) -> None:
    """Name the workers that failed, each with the last lines that it printed."""
    for number, code in enumerate(codes):
        if _failed(code):
            log = log_file(folder, number)
            text = log.read_text(errors="replace") if log.exists() else "It printed nothing."
            print(f"Worker {number} ended with exit code {code} ({log}):", file=sys.stderr)
            print("\n".join(text.splitlines()[-5:]), file=sys.stderr)


def _failed(code: int) -> bool:
    """Whether it is the exit code of a failure: with wait=false, workers leave what others hold."""
    return code not in (0, RunHeldError.exit_code)


def log_file(folder: Path, worker: int) -> Path:
    """The file with a worker's output."""
    return folder / f"worker-{worker}.log"


def start(
    log: Path, argv: Sequence[str], variables: Mapping[str, str], place: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start the command line as a worker in the folder `place`. It writes into `log`, and ends with this process."""
    command = [sys.executable, "-m", "moe_lab", *argv]
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            env={**variables, STARTER: str(os.getpid())},
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the command, which ends its workers
        )


@dataclass
class Worker:
    """A worker that a job of submitit or a task of Ray starts, on another machine perhaps. Called with its number."""

    folder: Path
    argv: Sequence[str]
    place: Path = field(default_factory=Path.cwd)
    """Paths of the command line are relative to it."""

    def __call__(self, number: int) -> int:
        variables, code = os.environ | {ATTEMPT: self.folder.name}, TERMINATED
        # SLURM sends SIGTERM to all processes of a job, long before it ends or requeues it
        while code == TERMINATED:
            process = start(log_file(self.folder, number), self.argv, variables, self.place)
            try:
                code = process.wait()
            finally:
                process.terminate()
        return code

    def checkpoint(self, number: int) -> Any:
        """Called by submitit in a job that is preempted or has used its time. The job is queued again as it is."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, number)


# launcher=local: workers on this machine, each with some GPUs or a share of the CPU cores

Wait = Callable[[int, Callable[[], object]], None]
"""(number of workers, whether one is alive): waits until none is."""


def run_local(folder: Path, config: Config, argv: Sequence[str], wait: Wait) -> list[int]:
    """Start the workers and wait for them. Returns their exit codes. An interruption also ends them, and is raised."""
    gpus = 0 if config.device == "cpu" else len(gpu_memory())
    each = config.launcher.gpus_per_worker or 1
    count = config.launcher.workers or gpus // each or WORKERS
    workers = [
        start(log_file(folder, number), argv, environment(number, count, gpus, each))
        for number in range(count)
    ]
    try:
        wait(count, lambda: any(worker.poll() is None for worker in workers))
    finally:
        for worker in workers:
            worker.terminate()
        codes = [worker.wait() for worker in workers]
    return codes


def gpus_of_worker(config: Config, plan: Callable[[], Plan]) -> int:
    """GPUs of each worker: the number that is given, or what the largest run of the plan needs.

    Raises ConfigError if the GPUs do not suffice.
    """
    gpus = [] if config.device == "cpu" else gpu_memory()
    given = config.launcher.gpus_per_worker
    if given is not None and gpus and given > len(gpus):
        raise ConfigError(
            f"launcher.gpus_per_worker={given}: {len(gpus)} are visible. Give at most {len(gpus)}."
        )
    if given is not None or not gpus:
        return given or 1
    rows = [row for row in plan().rows if row.memory is not None]
    if not rows:
        return 1
    row = max(rows, key=lambda row: row.memory or 0)
    needed, gpu = gpus_for(row.memory or 0, min(gpus)), min(gpus) / GIGABYTE
    what = f"{' '.join(row.names[:3])} takes {(row.memory or 0) / GIGABYTE:,.1f} GB (mode=plan)"
    if needed > len(gpus):
        raise ConfigError(
            f"{what}: {needed} GPUs of {gpu:,.0f} GB, and {len(gpus)} are visible.\n"
            "launcher.gpus_per_worker=<number> runs it all the same, with layers in the memory of the host."
        )
    return needed


def environment(number: int, count: int, gpus: int, each: int = 1) -> dict[str, str]:
    """The environment variables of a worker: its GPUs, or its number of threads."""
    if gpus:
        visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))).split(",")
        first = number % (gpus // each) * each
        return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(visible[first : first + each])}
    threads = max(1, torch.get_num_threads() // count)
    return {"OMP_NUM_THREADS": str(threads), **os.environ}


# launcher=ray: workers are tasks of a Ray cluster, which gives each its GPUs and restarts one that has died


def run_ray(folder: Path, config: Config, argv: Sequence[str], wait: Wait) -> list[int]:
    """As `run_local`. Raises ConfigError where Ray has no cluster at the address, or refuses a parameter."""
    import ray

    launcher = config.launcher
    with reading(f"launcher.address={launcher.address}", says="is refused by Ray"):
        ray.init(address=launcher.address, log_to_driver=False, include_dashboard=False)
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        each = launcher.gpus_per_worker or 1
        count = launcher.workers or gpus // each or WORKERS
        asked = ({"num_gpus": each} if gpus else {}) | launcher.parameters
        with reading(f"launcher.parameters={asked}", says="are refused by Ray"):
            task = ray.remote(**asked)(_call) if asked else ray.remote(_call)
        worker = Worker(folder, argv)
        tasks = [task.remote(worker, number) for number in range(count)]
        wait(count, lambda: ray.wait(tasks, num_returns=count, timeout=0)[1])
        return [_code(partial(ray.get, task), ray.exceptions.RayError) for task in tasks]
    finally:
        ray.shutdown()  # ends the tasks of this command


def _call(worker: Worker, number: int) -> int:
    return worker(number)


def _code(result: Callable[[], Any], died: type[BaseException]) -> int:
    """The exit code of a worker, 1 if its process died for good."""
    try:
        return int(result())
    except died:
        return 1


# launcher=submitit: workers are the jobs of a SLURM array, or processes of submitit's local executor
#
# A job that is preempted, or that reaches its time limit, is queued again and continues. Queued jobs do not need this
# command any longer: if it ends, they still run, and the same command writes the tables.


def run_submitit(folder: Path, config: Config, argv: Sequence[str], wait: Wait) -> list[int]:
    """As `run_local`, with queued jobs. Raises ConfigError where submitit refuses a parameter."""
    import submitit
    from submitit.core.utils import UncompletedJobError

    launcher = config.launcher
    gpus = {} if launcher.gpus_per_worker is None else {"gpus_per_node": launcher.gpus_per_worker}
    with reading("launcher.parameters", says="are refused by submitit"):
        executor = submitit.AutoExecutor(folder / "jobs", launcher.cluster, slurm_max_num_timeout=1000)
        executor.update_parameters(name="moe_lab", **(launcher.parameters | gpus))
    jobs = executor.map_array(Worker(folder, argv), range(launcher.workers or WORKERS))
    try:
        wait(len(jobs), lambda: not all(job.done() for job in jobs))
    except BaseException:
        for job in jobs:
            job.cancel()
        raise
    return [_code(job.result, UncompletedJobError) for job in jobs]


# What workers cannot share


def _spread(configs: Sequence[Config]) -> list[str]:
    """What spreads the models of a command line over the GPUs of a worker.

    Raises ConfigError for a device of one's own, and for trainings, which take one.
    """
    for config in configs:
        refuse(
            {
                f"device={config.device}: a worker with several GPUs spreads its models over them "
                "(model.device_map=auto). Leave device= out.": config.device != "auto",
                f"method={config.method.name} trains on one GPU, and a worker has several "
                "(launcher.gpus_per_worker).\nGive trainings a command of their own; torchrun splits a larger one "
                "(docs/finetuning.md).": issubclass(get_method(config.method.name), TrainingMethod),
            }
        )
    return [] if any(config.model.device_map for config in configs) else ["model.device_map=auto"]


def check_launcher(configs: Sequence[Config]) -> None:
    """Raise ConfigError for a command that workers cannot share, and for a launcher whose package is not installed."""
    launcher, mode = configs[0].launcher.name, configs[0].mode
    if launcher in ("ray", "submitit"):
        need_package(launcher, launcher, f"launcher={launcher}")
    for config in configs if mode == "run" else ():
        refuse(
            {
                "rerun=true would compute every run in every worker. Leave launcher= out.": config.rerun,
                f"device={config.device}: each worker has GPUs of its own. Leave it out, or launcher=. "
                "CUDA_VISIBLE_DEVICES says which GPUs workers share.": config.device.startswith("cuda:"),
                "torchrun starts the processes of one run, launcher= those of a grid. Leave one of them out.": (
                    num_processes() > 1
                ),
            }
        )


LAUNCHERS = {"local": run_local, "ray": run_ray, "submitit": run_submitit}
"""Each starts the workers, waits for them, and returns their exit codes."""
