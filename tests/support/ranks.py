"""Processes that work together as torchrun's do, forked from this one, which has
everything imported already."""

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState

from moe_lab.models.distributed import sharded

PROCESSES = 2


def fork_ranks(
    function: Callable[..., Any], *args: Any, log: Path, **environment: str
) -> list[int]:
    """Call `function(*args)` in each of two processes of one group; its result
    is the exit code, None is 0.

    When one process fails, the others are killed. What they print is added to the file
    `log`. Returns the exit codes.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment |= {
        "WORLD_SIZE": str(PROCESSES),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    fork = multiprocessing.get_context("fork")
    arguments = (environment, log, function, args)
    ranks = [fork.Process(target=_rank, args=(rank, *arguments)) for rank in range(PROCESSES)]
    for process in ranks:
        process.start()
    running = list(ranks)
    while running:
        ended = wait([process.sentinel for process in running], timeout=300)
        for process in running:
            if not ended or (process.sentinel in ended and process.exitcode):
                _kill(running)
        running = [process for process in running if process.is_alive()]
    return [process.exitcode for process in ranks]


def _kill(processes: list[Any]) -> None:
    for process in processes:
        process.kill()
        process.join()


def _rank(
    rank: int, environment: dict[str, str], log: Path, function: Callable[..., Any], args: tuple
) -> None:
    """One process: torchrun's environment, and nothing kept from being a single process."""
    os.environ |= environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    # pytest has replaced the streams
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    sharded.cache_clear()
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.set_num_threads(1)
    sys.exit(function(*args))
