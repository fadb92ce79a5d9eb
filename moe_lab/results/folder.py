"""Folders below the output folder: of a run, with its lock, status and result, and of artifacts
that runs share."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from moe_lab.config.terminal import without_passwords
from moe_lab.errors import ConfigError, MoeLabError, ResultsError, RunHeldError
from moe_lab.results.atomic import write_json, writing
from moe_lab.results.locks import acquire, is_locked
from moe_lab.results.model import RunResult
from moe_lab.results.reading import read_run
from moe_lab.results.stored_files import DamagedError, tidy, warn_once, whole_mapping
from moe_lab.results.versions import SCHEMA_VERSION

ATTEMPT = "MOE_LAB_ATTEMPT"
"""Environment variable that a command with `launcher=` and its workers share: what failed in one of
them is not tried in another. The same command again has another value, and tries it again."""
HOLDER = ".holder"
"""The file that names the process that holds a folder, or has held it."""


class RunFolder:
    """`outputs/runs/<model>-<method>-<task>-<id8>/`."""

    def __init__(self, path: Path, run_id: str):
        self.path = path
        self.run_id = run_id

    def stored(self, commit: str | None = None) -> RunResult | None:
        """The run's result if it is complete, of this id and, for a hub model, of this commit; else
        None."""
        try:
            result = read_run(self.path)
        except DamagedError as error:
            warn_once(f"{error.problem}. It is not used.")
            return None
        if result is None or result.status != "success":
            return None
        if result.run_id != self.run_id or result.schema_version != SCHEMA_VERSION:
            return None
        stored_commit = result.model.commit
        if commit and stored_commit and commit != stored_commit:
            return None
        return result

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder for this process, and remove what a killed process left. The lock ends
        with the process.

        Raises RunHeldError naming another process that holds it, and ConfigError if the folder
        cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"{self.path} cannot be made: {error.strerror}"
            raise ConfigError(f"{why}. Choose another output_dir=.") from error
        try:
            lock = acquire(self.path / ".lock")
        except OSError as error:
            raise ResultsError(
                f"{self.path} cannot be locked: {error.strerror or error}."
            ) from error
        if lock is None:
            raise self._held_error()
        try:
            with writing(self.path):
                tidy(self.path)
                since = f"since {datetime.now(UTC).isoformat(timespec='seconds')}"
                (self.path / HOLDER).write_text(
                    f"process {os.getpid()} on {socket.gethostname()} {since}"
                )
            yield
        finally:
            lock.release()

    def is_held(self) -> bool:
        """Whether a living process holds the run."""
        return is_locked(self.path / ".lock")

    def check_free(self) -> None:
        """Raise RunHeldError if a living process holds the run."""
        if self.is_held():
            raise self._held_error()

    @contextmanager
    def status(self) -> Iterator[None]:
        """Write status.json if the block fails: the reason, and the command that it failed in
        (`ATTEMPT`)."""
        file = self.path / "status.json"
        file.unlink(missing_ok=True)
        try:
            yield
        except RunHeldError:
            raise  # another process holds what the run needs
        except Exception as error:
            kind = "" if isinstance(error, MoeLabError) else f"{type(error).__name__}: "
            reason = without_passwords(f"{kind}{error}")
            with suppress(Exception):  # the error that ended the block is the one to report
                write_json(file, {"reason": reason, "attempt": os.environ.get(ATTEMPT)})
            raise

    def failure(self, attempt: str) -> str | None:
        """Why the run failed in this attempt (a value of the variable `ATTEMPT`); None if it did
        not fail in it."""
        status = whole_mapping(self.path / "status.json") or {}
        return status["reason"] if status.get("attempt") == attempt else None

    def _held_error(self) -> RunHeldError:
        """The error that names the process that holds the folder."""
        holder = self.path / HOLDER
        by = holder.read_text() if holder.exists() else "another process"
        return RunHeldError(
            f"{self.path.name} is held by {by}.\nWait for it, or stop it; the same command then "
            "continues.",
            self.path,
        )


def check_writable(output_dir: str) -> None:
    """Raise ConfigError if results cannot be written there. Makes no folder."""
    reason = why_not_writable(output_dir)
    if reason is not None:
        raise ConfigError(f"output_dir={output_dir}: {reason}. Choose another folder.")


def why_not_writable(output_dir: str) -> str | None:
    """Why results cannot be written there; None if they can. Makes no folder.

    What is stored there can still be shown, planned and reported on.
    """
    folder = Path(output_dir).absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is a file"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} is not writable"
    return None
