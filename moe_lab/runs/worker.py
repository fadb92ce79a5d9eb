"""A worker of `launcher=`: the process of a command that another command has started."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from moe_lab.runs.attempts import WORKER
from moe_lab.runs.parent import end_with

PARENT = "MOE_LAB_PARENT"
"""The environment variable of a worker with the number of the process that has started it."""
WORKERS = 2
"""Their number where none is given and there is no GPU."""


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


def log_of(folder: Path, number: int) -> Path:
    """The file with the output of a worker."""
    return folder / f"worker-{number}.log"


def end_with_command() -> None:
    """In a worker: end when the process that has started it is gone, for example by SIGKILL."""
    parent = os.environ.get(PARENT)
    if parent is not None:
        end_with(int(parent))
