"""Errors that a user can cause, and the exit code each one ends with.

Everything else that is raised is a defect of this package and keeps its traceback.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class MoeLabError(Exception):
    """Base of all user-facing errors: a few lines that say what is wrong and what to do."""

    exit_code = 1


class ConfigError(MoeLabError):
    """The request is wrong: unknown option or key, impossible value, missing data or file."""

    exit_code = 2


class ModelError(ConfigError):
    """The model cannot be used: no model there, no router, an unsupported family."""


class TaskError(ConfigError):
    """The task cannot be used: unknown name, missing or malformed data."""


class RoutingError(MoeLabError):
    """The routing seam was bypassed or met NaN while a run was under way."""


class TrainingError(MoeLabError):
    """A training cannot go on: a loss or gradient that is no number. All processes of a training raise it together."""


class ResultsError(MoeLabError):
    """Results could not be written or read."""


class RunHeldError(MoeLabError):
    """The requested run is held by another live process."""

    exit_code = 3


@contextmanager
def in_cell(overrides: Sequence[str], alone: bool) -> Iterator[None]:
    """Let a user-facing error name the cell of a grid that it is about; a run that is alone needs no name."""
    try:
        yield
    except MoeLabError as error:
        if alone:
            raise
        raise type(error)(f"In the cell {' '.join(overrides)}:\n{error}") from error
