"""A process that ends when its parent is gone: a process of torchrun, and a worker of `launcher=`.

A parent that is killed, for example because memory is short, does not end its processes.
"""

import os
import signal
import time
from functools import cache
from threading import Thread

from moe_lab.errors import TERMINATED

GRACE = 10.0
"""Seconds between SIGTERM and the end of a process whose parent is gone."""


@cache
def end_with(parent: int) -> None:
    """From now on this process ends when the process `parent` does, which has started it."""
    Thread(target=_end_without, args=(parent,), daemon=True).start()


def _end_without(parent: int) -> None:
    """Wait until the process `parent` is gone, then end this process."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    # a signal does not interrupt a wait for another process
    time.sleep(GRACE)
    os._exit(TERMINATED)
