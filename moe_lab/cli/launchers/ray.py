"""`launcher=ray`: workers are tasks of a Ray cluster, which gives each its GPU and starts one again that has died."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from moe_lab.cli.launchers.watch import watch
from moe_lab.config.schema import Config, LauncherConfig
from moe_lab.errors import ConfigError
from moe_lab.runs.board import Board

WITHOUT_GPU = 2
"""Workers where no number is given and the cluster has no GPU."""


def run_workers(board: Board, config: Config, argv: list[str]) -> list[int]:
    """Start the workers, show how far they are, and wait for them. Returns their exit codes.

    An interruption cancels them, and is raised. Raises ConfigError where Ray is not installed, has no cluster at the
    address, or refuses a parameter.
    """
    launcher = config.launcher
    ray = _connected(launcher)
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        count = launcher.workers or gpus or WITHOUT_GPU
        worker = _remote(ray, ({"num_gpus": 1} if gpus else {}) | launcher.parameters)
        tasks = [worker.remote(os.getcwd(), board.folder, number, argv) for number in range(count)]
        watch(board, count, lambda: ray.wait(tasks, num_returns=count, timeout=0)[1])
        return [_exit_code(ray, task) for task in tasks]
    finally:
        ray.shutdown()  # ends the tasks of this command


def _remote(ray: Any, asked: dict[str, Any]) -> Any:
    try:
        return ray.remote(**asked)(_work) if asked else ray.remote(_work)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"launcher.parameters={asked}: {error}") from error


def _work(place: str, folder: Path, number: int, argv: list[str]) -> int:
    from moe_lab.cli.worker import work_logged

    os.chdir(place)  # paths of the command line are relative to it
    return work_logged(folder, number, argv)


def _connected(launcher: LauncherConfig) -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError("launcher=ray needs Ray: pip install 'moe-lab[ray]'") from error
    try:
        ray.init(address=launcher.address, log_to_driver=False, include_dashboard=False)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"launcher.address={launcher.address}: {error}") from error
    return ray


def _exit_code(ray: Any, task: Any) -> int:
    """The exit code of a task; 1 if its process died for good."""
    try:
        return int(ray.get(task))
    except ray.exceptions.RayError:
        return 1
