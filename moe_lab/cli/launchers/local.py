"""`launcher=local`: workers on this machine, one GPU or a share of the CPU cores each."""

from __future__ import annotations

import os
import subprocess
import sys

from moe_lab.cli.launchers.watch import watch
from moe_lab.config.schema import Config
from moe_lab.runs.board import Board, log_file

WITHOUT_GPU = 2
"""Workers where no number is given and there is no GPU."""

Worker = subprocess.Popen[bytes]


def run_workers(board: Board, config: Config, argv: list[str]) -> list[int]:
    """Start the workers, show how far they are, and wait for them. Returns their exit codes.

    An interruption ends them, too, and is raised.
    """
    gpus = 0 if config.device == "cpu" else num_gpus()
    count = config.launcher.workers or gpus or WITHOUT_GPU
    workers = [start(board, number, argv, environment(number, count, gpus)) for number in range(count)]
    try:
        watch(board, count, lambda: any(worker.poll() is None for worker in workers))
    finally:
        for worker in workers:
            worker.terminate()
        codes = [worker.wait() for worker in workers]
    return codes


def num_gpus() -> int:
    """How many GPUs this process sees."""
    import torch

    return torch.cuda.device_count()


def environment(number: int, count: int, gpus: int) -> dict[str, str]:
    """The variables of a worker: its GPU of those that this process sees, or its number of threads."""
    if gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        return {**os.environ, "CUDA_VISIBLE_DEVICES": visible.split(",")[number % gpus]}
    import torch

    threads = max(1, torch.get_num_threads() // count)
    return {"OMP_NUM_THREADS": str(threads), **os.environ}


def start(board: Board, number: int, argv: list[str], variables: dict[str, str]) -> Worker:
    """Start a worker that writes its output into its log file, and ends when this process does."""
    command = [sys.executable, "-m", "moe_lab.cli.worker", str(board.folder), str(number), *argv]
    with log_file(board.folder, number).open("wb") as log:
        return subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process, which ends them
        )
