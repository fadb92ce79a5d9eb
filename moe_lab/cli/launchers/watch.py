"""What the command shows of its workers: how many runs are done, and the last lines of a worker that failed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from moe_lab.progress import Progress
from moe_lab.runs.board import Board, log_file

PAUSE = 1.0
"""Seconds between two looks at the board."""
LAST_LINES = 5


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
