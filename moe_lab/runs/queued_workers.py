"""`launcher=submitit`: workers are the jobs of a SLURM array.

`launcher=ray`: tasks of a Ray cluster.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from moe_lab.config.schema import Config
from moe_lab.errors import TERMINATED, reading
from moe_lab.results.folder import ATTEMPT
from moe_lab.runs.worker import WORKERS, log_of, start


@dataclass
class Worker:
    """Starts a worker from a job of submitit or a task of Ray, perhaps on another machine.

    Called with the worker's number, it waits for the worker and returns its exit code.
    """

    folder: Path
    argv: Sequence[str]
    place: Path = field(default_factory=Path.cwd)
    """Paths of the command line are relative to it."""

    def __call__(self, number: int) -> int:
        variables = os.environ | {ATTEMPT: self.folder.name}
        # SLURM sends SIGTERM to all processes of a job, long before it ends or requeues it
        code = TERMINATED
        while code == TERMINATED:
            process = start(log_of(self.folder, number), self.argv, variables, self.place)
            try:
                code = process.wait()
            finally:
                process.terminate()
        return code

    def checkpoint(self, number: int) -> Any:
        """Called by submitit in a job that is preempted or has used its time.

        The job is queued again as it is.
        """
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, number)


def run_submitit(folder: Path, config: Config, argv: Sequence[str]) -> list[int]:
    """As `run_local`, with queued jobs.

    If this command is killed they still run, and the same command continues. Raises ConfigError
    where submitit refuses a parameter.
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

    launcher = config.launcher
    worker = Worker(folder, argv)
    with reading(f"launcher.address={launcher.address}", says="is refused by Ray"):
        ray.init(address=launcher.address, log_to_driver=False, include_dashboard=False)
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        parameters = {"num_gpus": 1 if gpus else 0} | launcher.parameters
        with reading("launcher.parameters", says="are refused by Ray"):
            remote = ray.remote(**parameters)
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
