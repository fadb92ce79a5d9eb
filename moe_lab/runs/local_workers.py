"""`launcher=local`: workers on this machine, each with some GPUs or a share of the CPU cores."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from moe_lab.config.schema import Config, LauncherConfig
from moe_lab.runs.worker import WORKERS, log_of, start


def run_local(folder: Path, config: Config, argv: Sequence[str]) -> list[int]:
    """Start the workers and wait for them. Returns their exit codes.

    An interruption also ends them, and is raised.
    """
    gpus = 0 if config.device == "cpu" else torch.cuda.device_count()
    gpus_per_worker = config.launcher.gpus_per_worker
    count = _num_workers(config.launcher, gpus)
    workers = []
    for number in range(count):
        variables = environment(number, count, gpus, gpus_per_worker)
        workers.append(start(log_of(folder, number), argv, variables))
    try:
        return [worker.wait() for worker in workers]
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()


def _num_workers(launcher: LauncherConfig, gpus: int) -> int:
    """The number that was asked for; else as many as the GPUs are enough for, WORKERS without
    GPUs."""
    if launcher.workers is not None:
        return launcher.workers
    of_gpus = gpus // launcher.gpus_per_worker
    return WORKERS if of_gpus == 0 else of_gpus


def environment(number: int, count: int, gpus: int, gpus_per_worker: int = 1) -> dict[str, str]:
    """The environment variables of a worker: its GPUs, or without GPUs its number of threads.

    An OMP_NUM_THREADS that is set already stays.

    Args:
        number: of the worker, from 0 on.
        count: the number of workers.
        gpus: the number of visible GPUs. Workers share them if there are too few.
    """
    if not gpus:
        threads = max(1, torch.get_num_threads() // count)
        return {"OMP_NUM_THREADS": str(threads), **os.environ}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    places = max(1, gpus // gpus_per_worker)
    first = number % places * gpus_per_worker
    chosen = visible.split(",")[first : first + gpus_per_worker]
    return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(chosen)}
