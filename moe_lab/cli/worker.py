"""A worker of another command: the same command line, whose runs it shares with other workers. It writes no tables.

python -m moe_lab.cli.worker <folder of the board> <number> method=roe ...
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from moe_lab.cli.main import main
from moe_lab.runs.board import Board, log_file, on_board


def work(folder: Path, number: int, argv: list[str]) -> int:
    """Run what nobody else runs of a command line. Returns its exit code."""
    with on_board(Board(folder, number)):
        return main(argv)


def work_logged(folder: Path, number: int, argv: list[str]) -> int:
    """`work`, with its output in the worker's log file."""
    with log_file(folder, number).open("a") as log, redirect_stdout(log), redirect_stderr(log):
        return work(folder, number, argv)


def end_with_starter() -> None:
    """Terminate this process when the command that started it ends, by whatever signal: its pipe to stdin closes."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_starter()
    sys.exit(work(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
