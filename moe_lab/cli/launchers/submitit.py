"""`launcher=submitit`: workers are the jobs of a SLURM array, or processes of submitit's local executor.

A job that is preempted, or that reaches its time limit, is queued again and continues. The jobs need this command no
longer once they are queued: if it ends, they still make their runs, and the same command writes the tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moe_lab.cli.launchers.watch import watch
from moe_lab.cli.worker import work_logged
from moe_lab.config.schema import Config, LauncherConfig
from moe_lab.errors import ConfigError
from moe_lab.runs.board import Board

WORKERS = 2
"""Where no number is given."""
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


def run_workers(board: Board, config: Config, argv: list[str]) -> list[int]:
    """Queue the workers, show how far they are, and wait for them. Returns their exit codes.

    An interruption cancels them, and is raised. Raises ConfigError where submitit is not installed, or refuses a
    parameter.
    """
    executor = _executor(board, config.launcher)
    jobs = executor.map_array(Requeued(board.folder, argv), range(config.launcher.workers or WORKERS))
    try:
        watch(board, len(jobs), lambda: not all(job.done() for job in jobs))
    except BaseException:
        for job in jobs:
            job.cancel()
        raise
    return [_exit_code(job) for job in jobs]


def _executor(board: Board, launcher: LauncherConfig) -> Any:
    try:
        import submitit
    except ImportError as error:
        raise ConfigError("launcher=submitit needs submitit: pip install 'moe-lab[submitit]'") from error
    try:
        executor = submitit.AutoExecutor(
            board.folder / "jobs", launcher.cluster, slurm_max_num_timeout=REQUEUES
        )
        executor.update_parameters(name="moe_lab", **launcher.parameters)
    except (NameError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"launcher=submitit: {error}") from error
    return executor


def _exit_code(job: Any) -> int:
    """The exit code of a job; 1 if it ended without one."""
    from submitit.core.utils import UncompletedJobError

    try:
        return int(job.result())
    except UncompletedJobError:  # killed
        return 1
