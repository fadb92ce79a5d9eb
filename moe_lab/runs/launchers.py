"""`launcher=`: workers, which are equal commands that share the runs of a grid by their locks.

The command waits for them. Then it computes what they left, if anything, and writes the tables.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from moe_lab.config.overrides import LAUNCHER
from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message
from moe_lab.errors import TERMINATED, RunHeldError, need_package, reading
from moe_lab.methods.method import refuse
from moe_lab.models.distributed import num_processes
from moe_lab.results.folder import ATTEMPT
from moe_lab.runs.attempts import WORKER
from moe_lab.runs.parent import end_with

PARENT = "MOE_LAB_PARENT"
"""The environment variable of a worker with the number of the process that has started it."""
WORKERS = 2
"""Their number where none is given and there is no GPU."""


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
                "CUDA_VISIBLE_DEVICES says which GPUs workers share.": config.device.startswith(
                    "cuda:"
                ),
                "torchrun starts the processes of one run, launcher= those of a grid. Leave one out.": (
                    num_processes() > 1
                ),
            }
        )


@contextmanager
def after_workers(config: Config, argv: Sequence[str]) -> Iterator[None]:
    """Let workers compute the runs of a command line before the context, if it has a launcher.

    What failed in a worker is not tried again inside the context; what workers left because they died is. The folder
    with their output is kept if one failed.
    """
    if config.launcher.name == "none":
        yield
        return
    attempt = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder = Path(config.output_dir).absolute() / "workers" / attempt
    folder.mkdir(parents=True)
    print_message(f"The output of the workers: {folder}")
    words = [word for word in argv if not word.startswith(LAUNCHER)]
    os.environ[ATTEMPT] = attempt
    try:
        codes = LAUNCHERS[config.launcher.name](folder, config, words)
        # with wait=false, workers leave what others hold
        failed = {
            number: code
            for number, code in enumerate(codes)
            if code not in (0, RunHeldError.exit_code)
        }
        for number, code in failed.items():
            print_message(f"Worker {number} ended with exit code {code}: {_log(folder, number)}")
        yield
    finally:
        del os.environ[ATTEMPT]
    if not failed:
        shutil.rmtree(folder)


def end_with_command() -> None:
    """In a worker: end when the process that has started it is gone, by SIGHUP or SIGKILL, say."""
    parent = os.environ.get(PARENT)
    if parent is not None:
        end_with(int(parent))


def _log(folder: Path, worker: int) -> Path:
    return folder / f"worker-{worker}.log"


def start(
    log: Path, argv: Sequence[str], variables: Mapping[str, str], place: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start the command line as a worker in the folder `place`. It writes into `log`."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "moe_lab", *argv],
            env={**variables, WORKER: "1", PARENT: str(os.getpid())},
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the command, which ends its workers
        )


# launcher=local: workers on this machine, each with some GPUs or a share of the CPU cores


def run_local(folder: Path, config: Config, argv: Sequence[str]) -> list[int]:
    """Start the workers and wait for them. Returns their exit codes. An interruption also ends them, and is raised."""
    gpus, each = (
        0 if config.device == "cpu" else torch.cuda.device_count(),
        config.launcher.gpus_per_worker,
    )
    count = config.launcher.workers or gpus // each or WORKERS
    workers = [
        start(_log(folder, number), argv, environment(number, count, gpus, each))
        for number in range(count)
    ]
    try:
        return [worker.wait() for worker in workers]
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()


def environment(number: int, count: int, gpus: int, each: int = 1) -> dict[str, str]:
    """The environment variables of a worker: its GPUs, or its number of threads."""
    if gpus:
        visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))).split(
            ","
        )
        first = number % max(1, gpus // each) * each
        return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(visible[first : first + each])}
    threads = max(1, torch.get_num_threads() // count)
    return {"OMP_NUM_THREADS": str(threads), **os.environ}


# launcher=submitit: workers are the jobs of a SLURM array; launcher=ray: they are tasks of a Ray cluster


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
            process = start(_log(self.folder, number), self.argv, variables, self.place)
            try:
                code = process.wait()
            finally:
                process.terminate()
        return code

    def checkpoint(self, number: int) -> Any:
        """Called by submitit in a job that is preempted or has used its time. The job is queued again as it is."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, number)


def run_submitit(folder: Path, config: Config, argv: Sequence[str]) -> list[int]:
    """As `run_local`, with queued jobs. If this command is killed they still run, and the same command continues.

    Raises ConfigError where submitit refuses a parameter.
    """
    import submitit
    from submitit.core.utils import UncompletedJobError

    launcher = config.launcher
    with reading("launcher.parameters", says="are refused by submitit"):
        executor = submitit.AutoExecutor(
            folder / "jobs", launcher.cluster, slurm_max_num_timeout=1000
        )
        executor.update_parameters(name="moe_lab", **launcher.parameters)
    jobs = executor.map_array(Worker(folder, argv), range(launcher.workers or WORKERS))
    try:
        return [_code(job.result, UncompletedJobError) for job in jobs]
    except BaseException:
        for job in jobs:
            job.cancel()
        raise


def run_ray(folder: Path, config: Config, argv: Sequence[str]) -> list[int]:
    """As `run_local`, with tasks that Ray starts again where one has died.

    Raises ConfigError where Ray has no cluster at the address, or refuses a parameter.
    """
    import ray

    launcher, worker = config.launcher, Worker(folder, argv)
    with reading(f"launcher.address={launcher.address}", says="is refused by Ray"):
        ray.init(address=launcher.address, log_to_driver=False, include_dashboard=False)
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        with reading("launcher.parameters", says="are refused by Ray"):
            remote = ray.remote(**({"num_gpus": 1 if gpus else 0} | launcher.parameters))
        task = remote(lambda number: worker(number))
        tasks = [task.remote(number) for number in range(launcher.workers or gpus or WORKERS)]
        return [_code(partial(ray.get, task), ray.exceptions.RayError) for task in tasks]
    finally:
        ray.shutdown()  # ends the tasks of this command


def _code(result: Callable[[], Any], died: type[BaseException]) -> int:
    """The exit code of a worker, 1 if its process died for good."""
    try:
        return int(result())
    except died:
        return 1


LAUNCHERS = {"local": run_local, "ray": run_ray, "submitit": run_submitit}
"""Each starts the workers, waits for them, and returns their exit codes."""
