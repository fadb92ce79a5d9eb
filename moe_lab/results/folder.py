"""Folders below the output folder: of a run, with its lock, status and result, and of artifacts that runs share."""

import fcntl
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from moe_lab.config.progress import naming
from moe_lab.config.terminal import without_passwords
from moe_lab.errors import ConfigError, MoeLabError, ResultsError, RunHeldError
from moe_lab.results.atomic import write_json, writing
from moe_lab.results.model import RunResult
from moe_lab.results.reading import read_run
from moe_lab.results.stored_files import DamagedError, tidy, warn_once, whole_mapping
from moe_lab.results.versions import SCHEMA_VERSION

ATTEMPT = "MOE_LAB_ATTEMPT"
"""Environment variable that a command with `launcher=` and its workers share: what failed in one of them is not tried
in another. The same command again has another value, and tries it again."""
HOLDER = ".holder"
"""The file that names the process that holds a folder, or has held it."""


class RunFolder:
    """`outputs/runs/<model>-<method>-<task>-<id8>/`."""

    def __init__(self, path: Path, run_id: str):
        self.path = path
        self.run_id = run_id

    def stored(self, commit: str | None = None) -> RunResult | None:
        """The run's result if it is complete, of this id and, for a hub model, of this commit; else None."""
        try:
            found = read_run(self.path)
        except DamagedError as error:
            warn_once(f"{error.problem}. It is not used.")
            return None
        if found is None or found.run_id != self.run_id or found.schema_version != SCHEMA_VERSION:
            return None
        other_commit = commit and found.model.commit and commit != found.model.commit
        return None if other_commit or found.status != "success" else found

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder for this process, and remove what a killed process left. The lock ends with the process.

        Raises RunHeldError naming another process that holds it, and ConfigError if the folder cannot be made.
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
        """Write status.json if the block fails: the reason, and the command that it failed in (`ATTEMPT`)."""
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
        """Why it failed in this `ATTEMPT`; None if it did not."""
        status = whole_mapping(self.path / "status.json") or {}
        return status["reason"] if status.get("attempt") == attempt else None

    def _held_error(self) -> RunHeldError:
        holder = self.path / HOLDER
        by = holder.read_text() if holder.exists() else "another process"
        return RunHeldError(
            f"{self.path.name} is held by {by}.\nWait for it, or stop it; the same command then continues.",
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


# Artifacts that runs share: a trained model, an adapter, a set of references, a profile
#
# The record, a JSON file with the artifact's id, is written last. After a kill the same command makes the artifact
# again, or continues from its scratch folder.


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A folder that is complete if its record exists, is undamaged and has this id."""

    folder: Path
    id: str
    """SHA-256 of what determines the content."""
    record: str
    """File name of the record."""
    scratch: str | None = None
    """Folder inside that a killed command continues from; removed when the record is written."""

    def stored(self) -> dict[str, Any] | None:
        """The record; None if it has to be made."""
        content = whole_mapping(self.folder / self.record) or {}
        return content if content.get("id") == self.id and self.is_whole(content) else None

    def is_whole(self, content: dict[str, Any]) -> bool:
        """Whether the record has its keys, and the other files exist."""
        return True

    def load_or_make(self, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The record; made by `make()`, which writes the other files and returns the record's content.

        The folder is held meanwhile. Raises RunHeldError if another process makes it.
        """
        record = self.stored()
        if record is None:
            store = RunFolder(self.folder, self.id)
            with store.held():
                record = self.stored()
                if record is None:
                    (self.folder / self.record).unlink(missing_ok=True)
                    with store.status(), naming(self.folder.name):
                        record = {"id": self.id, **make()}
                        write_json(self.folder / self.record, record)
        if self.scratch is not None:
            shutil.rmtree(self.folder / self.scratch, ignore_errors=True)
        return record


# Locks between processes: a file is locked until its process releases it or ends


def lock_on(file: Path) -> FileLock:
    """The lock on a file, not acquired."""
    return FileLock(file, is_singleton=False)


def acquire(file: Path) -> FileLock | None:
    """Acquire the lock on a file; None if another process has it. Raises OSError if the file cannot be locked."""
    lock = lock_on(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except NotImplementedError as error:
        raise OSError(str(error)) from error
    return lock


def is_locked(file: Path) -> bool:
    """Whether a living process has the lock. Makes no file, and works in a folder that cannot be written."""
    if not file.exists():
        return False
    handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # shared: the holder's lock, which is exclusive, excludes it, and a file that is only read can have it
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
