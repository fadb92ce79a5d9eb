"""A command line in a child of this process, which has all libraries loaded already."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moe_lab.cli.main import main

PATIENCE = 300.0
"""Seconds after which a command counts as hanging."""
HANGING = -1


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """Exit code; HANGING; 128 + n where signal n ended it."""
    output: str
    """stdout and stderr."""
    seconds: float

    @property
    def traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.output

    @property
    def last_line(self) -> str:
        lines = self.output.strip().splitlines()
        return lines[-1][:200] if lines else "nothing was printed"


def run(
    argv: list[str],
    log: Path,
    *,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
    kill_after: float | None = None,
    patience: float = PATIENCE,
) -> Ended:
    """Run a command line in a forked child; `before` and `after` are called there. Its output goes
    through `log`.

    `kill_after`: seconds after which it is killed with SIGKILL.
    """
    log.write_text("")
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_child(argv, log, before, after)
    limit = patience if kill_after is None else kill_after
    while (status := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() - start > limit:
            os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)
            break
        time.sleep(0.005)
    seconds = time.monotonic() - start
    code = os.waitstatus_to_exitcode(status[1])
    if kill_after is None and seconds > patience:
        code = HANGING
    return Ended(code if code >= HANGING else 128 - code, log.read_text(errors="replace"), seconds)


def _be_child(
    argv: list[str], log: Path, before: Callable[[], object], after: Callable[[], object]
) -> None:
    """Does not return."""
    code = 70
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        before()
        code = main(argv)
        after()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
