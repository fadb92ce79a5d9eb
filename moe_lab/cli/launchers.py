"""`launcher=`: workers that share the runs of one command, which waits for them and then writes its tables.

A worker is the same command line in another process. It writes no tables:

    python -m moe_lab.cli.launchers <folder of the board> <number> method=roe ...
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.cli.main import main
from moe_lab.config.progress import Progress
from moe_lab.config.schema import Config, LauncherConfig
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.method import ModelMaker, TrainingMethod
from moe_lab.models.distributed import num_processes
from moe_lab.results.folder import check_writable
from moe_lab.runs.board import Board, log_file, on_board
from moe_lab.runs.budget import GIGABYTE, gpu_memory, gpus_for

if TYPE_CHECKING:
    from moe_lab.runs.plan import Plan

# Progress and failures of workers

PAUSE = 1.0
"""Seconds between two reads of the board."""
LAST_LINES = 5
WORKERS = 2
"""Their number where none is given and there is no GPU."""


def watch(board: Board, workers: int, alive: Callable[[], object]) -> None:
    """Show how many runs are done for as long as workers are alive."""
    while board.total() is None and alive():
        time.sleep(PAUSE)
    stored = len(board.stored())
    with Progress(board.total() or 0, f"{workers} workers", "run", initial=stored) as progress:
        while alive():
            failed = len(board.failures())
            progress.at(len(board.stored() | board.made()), f"{failed} failed" if failed else None)
            time.sleep(PAUSE)


def print_failed(board: Board, codes: Sequence[int]) -> None:
    """Name the workers with an exit code other than 0, each with the last lines that it printed."""
    for number, code in enumerate(codes):
        if code:
            log = log_file(board.folder, number)
            text = log.read_text(errors="replace") if log.exists() else "It printed nothing."
            print(f"Worker {number} ended with exit code {code} ({log}):", file=sys.stderr)
            print("\n".join(text.splitlines()[-LAST_LINES:]), file=sys.stderr)


# A worker


def work(folder: Path, number: int, argv: list[str]) -> int:
    """Run the runs of a command line that no other worker holds. Returns the exit code."""
    with on_board(Board(folder, number)):
        return main(argv)


def work_logged(folder: Path, number: int, argv: list[str]) -> int:
    """`work`, with its output in the worker's log file."""
    with log_file(folder, number).open("a") as log, redirect_stdout(log), redirect_stderr(log):
        return work(folder, number, argv)


def end_with_starter() -> None:
    """Terminate this process when the command that started it ends: its pipe to stdin closes, even after SIGKILL."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


# launcher=local: workers on this machine, each with some GPUs or a share of the CPU cores

Worker = subprocess.Popen[bytes]


def run_local(board: Board, config: Config, argv: list[str]) -> list[int]:
    """Start the workers, show how far they are, and wait for them. Returns their exit codes.

    An interruption also ends them, and is raised.
    """
    gpus = 0 if config.device == "cpu" else len(gpu_memory())
    each = config.launcher.gpus_per_worker or 1
    count = config.launcher.workers or gpus // each or WORKERS
    workers = [start(board, number, argv, environment(number, count, gpus, each)) for number in range(count)]
    try:
        watch(board, count, lambda: any(worker.poll() is None for worker in workers))
    finally:
        for worker in workers:
            worker.terminate()
        codes = [worker.wait() for worker in workers]
    return codes


def placed(config: Config, plan: Callable[[], Plan]) -> int:
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
    import torch

    threads = max(1, torch.get_num_threads() // count)
    return {"OMP_NUM_THREADS": str(threads), **os.environ}


def start(board: Board, number: int, argv: list[str], variables: dict[str, str]) -> Worker:
    """Start a worker that writes its output into its log file, and ends when this process does."""
    command = [sys.executable, "-m", "moe_lab.cli.launchers", str(board.folder), str(number), *argv]
    with log_file(board.folder, number).open("wb") as log:
        return subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process, which ends them
        )


# launcher=ray: workers are tasks of a Ray cluster, which gives each its GPUs and restarts one that has died


def run_ray(board: Board, config: Config, argv: list[str]) -> list[int]:
    """Start the workers, show how far they are, and wait for them. Returns their exit codes.

    An interruption cancels them, and is raised. Raises ConfigError where Ray has no cluster at the address, or refuses
    a parameter.
    """
    launcher = config.launcher
    ray = _connected(launcher)
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        each = launcher.gpus_per_worker or 1
        count = launcher.workers or gpus // each or WORKERS
        worker = _remote(ray, ({"num_gpus": each} if gpus else {}) | launcher.parameters)
        tasks = [worker.remote(os.getcwd(), board.folder, number, argv) for number in range(count)]
        watch(board, count, lambda: ray.wait(tasks, num_returns=count, timeout=0)[1])
        return [_exit_code_of_task(ray, task) for task in tasks]
    finally:
        ray.shutdown()  # ends the tasks of this command


def _remote(ray: Any, asked: dict[str, Any]) -> Any:
    try:
        return ray.remote(**asked)(_work) if asked else ray.remote(_work)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"launcher.parameters={asked}: {error}") from error


def _work(place: str, folder: Path, number: int, argv: list[str]) -> int:
    os.chdir(place)  # paths of the command line are relative to it
    return work_logged(folder, number, argv)


def _connected(launcher: LauncherConfig) -> Any:
    import ray

    try:
        ray.init(address=launcher.address, log_to_driver=False, include_dashboard=False)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"launcher.address={launcher.address}: {error}") from error
    return ray


def _exit_code_of_task(ray: Any, task: Any) -> int:
    """The exit code of a task; 1 if its process died for good."""
    try:
        return int(ray.get(task))
    except ray.exceptions.RayError:
        return 1


# launcher=submitit: workers are the jobs of a SLURM array, or processes of submitit's local executor
#
# A job that is preempted, or that reaches its time limit, is queued again and continues. Queued jobs do not need this
# command any longer: if it ends, they still run, and the same command writes the tables.

REQUEUES = 1000
"""How often a job may reach its time limit."""


class Requeued:
    """A worker that submitit queues again, as it is."""

    def __init__(self, folder: Path, argv: list[str]):
        self.folder, self.argv = folder, argv

    def __call__(self, number: int) -> int:
        return work_logged(self.folder, number, self.argv)

    def checkpoint(self, number: int) -> Any:
        """Called by submitit in a job that is preempted or has used its time."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, number)


def run_submitit(board: Board, config: Config, argv: list[str]) -> list[int]:
    """Queue the workers, show how far they are, and wait for them. Returns their exit codes.

    An interruption cancels them, and is raised. Raises ConfigError where submitit refuses a parameter.
    """
    executor = _executor(board, config.launcher)
    jobs = executor.map_array(Requeued(board.folder, argv), range(config.launcher.workers or WORKERS))
    try:
        watch(board, len(jobs), lambda: not all(job.done() for job in jobs))
    except BaseException:
        for job in jobs:
            job.cancel()
        raise
    return [_exit_code_of_job(job) for job in jobs]


def _executor(board: Board, launcher: LauncherConfig) -> Any:
    import submitit

    try:
        executor = submitit.AutoExecutor(
            board.folder / "jobs", launcher.cluster, slurm_max_num_timeout=REQUEUES
        )
        each = launcher.gpus_per_worker
        gpus = {} if each is None else {"gpus_per_node": each}
        executor.update_parameters(name="moe_lab", **(launcher.parameters | gpus))
    except (NameError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"launcher=submitit: {error}") from error
    return executor


def _exit_code_of_job(job: Any) -> int:
    """The exit code of a job; 1 if it ended without one."""
    from submitit.core.utils import UncompletedJobError

    try:
        return int(job.result())
    except UncompletedJobError:  # killed
        return 1


# The command

OURS = re.compile(r"\+*launcher[.=]")
"""An override that the workers do not get."""


@contextmanager
def launched(configs: Sequence[Config], argv: list[str], plan: Callable[[], Plan]) -> Iterator[None]:
    """Let workers compute the runs of a command line. Inside the context, their board is this process's.

    This process runs whatever is unfinished when the workers end, for example because they crashed. The folder with
    their output is kept if one failed. Raises ConfigError for a command that workers cannot share.
    """
    _check(configs)
    config = configs[0]
    if config.launcher.name == "local":
        config = replace(config, launcher=replace(config.launcher, gpus_per_worker=placed(config, plan)))
    check_writable(config.output_dir)
    folder = (
        Path(config.output_dir).absolute() / "workers" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    )
    folder.mkdir(parents=True)
    board = Board(folder)
    words = [word for word in argv if not OURS.match(word)]
    if (config.launcher.gpus_per_worker or 1) > 1:
        words = _spread(configs, words)
    codes = LAUNCHERS[config.launcher.name](board, config, words)
    print_failed(board, codes)
    with on_board(board):
        yield
    if not any(codes) and not board.failures():
        shutil.rmtree(folder)


def _spread(configs: Sequence[Config], words: list[str]) -> list[str]:
    """The words of workers with several GPUs. This process spreads its models, too: it runs what workers leave.

    Raises ConfigError for a device of one's own, and for trainings, which take one.
    """
    for config in configs:
        if config.device != "auto":
            raise ConfigError(
                f"device={config.device}: a worker with several GPUs spreads its models over them "
                "(model.device_map=auto). Leave device= out."
            )
        if issubclass(get_method(config.method.name), TrainingMethod):
            raise ConfigError(
                f"method={config.method.name} trains on one GPU, and a worker has several (launcher.gpus_per_worker).\n"
                "Give trainings a command of their own; torchrun splits a larger one (docs/finetuning.md)."
            )
    if any(config.model.device_map for config in configs):
        return words
    for config in configs:
        config.model.device_map = "auto"
    return [*words, "model.device_map=auto"]


def check_package(launcher: str) -> None:
    """Raise ConfigError if the package of a launcher is not installed."""
    if launcher in ("ray", "submitit") and find_spec(launcher) is None:
        raise ConfigError(
            f"launcher={launcher} needs the package {launcher}, which is not installed.\n"
            f"In the checkout of moe_lab: pip install -e '.[{launcher}]'"
        )


def _check(configs: Sequence[Config]) -> None:
    check_package(configs[0].launcher.name)
    for config in configs:
        if issubclass(get_method(config.method.name), ModelMaker):
            raise ConfigError(
                f"method={config.method.name} trains one model, which workers cannot share. Leave launcher= out."
            )
    if configs[0].rerun:
        raise ConfigError("rerun=true would compute every run in every worker. Leave launcher= out.")
    for config in configs:
        if config.device.startswith("cuda:"):
            raise ConfigError(
                f"device={config.device}: each worker has GPUs of its own. Leave it out, or launcher=. "
                "CUDA_VISIBLE_DEVICES says which GPUs workers share."
            )
    if num_processes() > 1:
        raise ConfigError(
            "torchrun starts the processes of one run, launcher= those of a grid. Leave one of them out."
        )


LAUNCHERS = {"local": run_local, "ray": run_ray, "submitit": run_submitit}
"""Each starts the workers, shows how far they are, and returns their exit codes."""

if __name__ == "__main__":
    end_with_starter()
    sys.exit(work(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
