"""Errors that a user can cause, and how the command ends: exit codes and messages.

Everything else that is raised is a defect of this package and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

INTERRUPTED = 130
TERMINATED = 143
CONTINUES = (
    "Interrupted. The same command continues: finished runs and stored answers are kept.\n"
    "A training continues from its last checkpoint; without one it starts anew."
)
"""Printed after an interruption."""


class MoeLabError(Exception):
    """Base of all user-facing errors: a few lines with the problem and the remedy."""

    exit_code = 1


class ConfigError(MoeLabError):
    """The request is wrong: unknown option or key, impossible value, missing data or file."""

    exit_code = 2


def need_package(module: str, extra: str, key: str) -> None:
    """Raise ConfigError where a module is not installed, which an extra of this package brings and
    `key` needs."""
    if find_spec(module) is None:
        raise ConfigError(
            f"{key} needs a package that is not installed: pip install 'moe-lab[{extra}]'."
        )


class ModelError(ConfigError):
    """The model cannot be used: no model there, no router, an unsupported family."""


class TaskError(ConfigError):
    """The task cannot be used: unknown name, missing or malformed data."""


class RoutingError(MoeLabError):
    """A router was bypassed, or its logits were NaN, during a run."""


class TrainingError(MoeLabError):
    """A training cannot continue: a loss or gradient is NaN. All processes of a training raise it
    together."""


class ResultsError(MoeLabError):
    """Results could not be written or read."""


class RunHeldError(MoeLabError):
    """The requested run is held by another live process."""

    exit_code = 3

    def __init__(self, message: str, folder: Path | None = None):
        super().__init__(message)
        self.folder = folder
        """The folder that the other process holds, if it is known."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, as an exception that unwinds like Ctrl-C does."""


@contextmanager
def reading(
    path: object,
    remedy: str = "",
    *,
    raises: type[MoeLabError] = ConfigError,
    says: str = "cannot be read",
) -> Iterator[None]:
    """Inside the context, whatever the reader of a user's file raises becomes one message.

        with reading(f"method.profile={path}", "Tune again."):

    The libraries that read files raise nearly any exception for content that they do not expect.
    The message has the path, what `says`, the first line of the error and the remedy. Errors of
    this package only get the path.
    """
    try:
        yield
    except MoeLabError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error
    except Exception as error:
        raise raises(f"{path} {says}: {first_line(error)}. {remedy}".rstrip()) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is torch's "out of memory", of a device or of the machine."""
    # of the machine it is a plain RuntimeError
    return type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 300 characters."""
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip(' "')]
    return (lines[0][:300] if lines else type(error).__name__).rstrip(".")


def exit_code(error: BaseException) -> int:
    """The exit code that an exception ends the command with."""
    if isinstance(error, Terminated):
        return TERMINATED
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return error.exit_code if isinstance(error, MoeLabError) else 1
