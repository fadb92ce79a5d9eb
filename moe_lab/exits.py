"""How the command ends: exit codes, the message of an error, and SIGTERM as an exception."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType

from moe_lab.errors import MoeLabError

INTERRUPTED = 130
TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, as an exception that unwinds like Ctrl-C does."""


def exit_code(error: BaseException) -> int:
    """The exit code that an exception ends the command with."""
    if isinstance(error, Terminated):
        return TERMINATED
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return error.exit_code if isinstance(error, MoeLabError) else 1


def print_error(error: BaseException) -> None:
    """A user's error as its message, a defect (or anything under HYDRA_FULL_ERROR=1) with its traceback."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1" or not isinstance(error, MoeLabError):
        traceback.print_exception(error, file=sys.stderr)
    else:
        print(f"Error: {error}", file=sys.stderr)


def raise_on_sigterm() -> None:
    """Let SIGTERM unwind, so that a run's status says `interrupted`. Only the main thread may ask for it."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
