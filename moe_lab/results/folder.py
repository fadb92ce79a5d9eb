"""A run's folder: its lock, its status and its result."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moe_lab.config.terminal import without_passwords
from moe_lab.errors import ConfigError, LeaseLostError, ResultsError, RunHeldError
from moe_lab.results import statistics
from moe_lab.results.atomic import write_json, writing
from moe_lab.results.lock import acquire, is_locked
from moe_lab.results.shapes import results_misfit
from moe_lab.results.stored_files import damaged, parsed_once, tidy, warn_once, whole_mapping
from moe_lab.results.versions import DECISIVE, SCHEMA_VERSION, versions

LEAST_FREE_BYTES = 64 * 2**20
BLOCKS = ("model", "method", "task", "versions", "samples", "cost", "intervals")
"""The mappings in the `moe_lab` block of every results.json."""


class RunFolder:
    """`outputs/runs/<model>-<method>-<task>-<id8>/`."""

    def __init__(self, path: Path, run_id: str):
        self.path = path
        self.run_id = run_id

    def stored(self, commit: str | None = None) -> dict[str, Any] | None:
        """The content of results.json if it is complete, of this id and, for a hub model, of this commit; else None."""
        results = parsed_once(self.path / "results.json") or {}
        block = results.get("moe_lab")
        if not isinstance(block, dict) or not isinstance(results.get("results"), dict):
            return None  # absent, damaged, or not ours: the run is computed
        if not all(isinstance(block.get(key), dict) for key in BLOCKS):
            return None
        if (problem := results_misfit(results)) is not None:
            warn_once(f"{damaged(self.path / 'results.json', problem).problem}. It is not used.")
            return None
        mine = block.get("run_id") == self.run_id and block.get("schema_version") == SCHEMA_VERSION
        if not mine or block.get("status") != "success":
            return None
        other = block["model"].get("commit")
        return None if commit and other and commit != other else results

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder for this process and clean up after a kill. The end of the process releases the lock.

        Raises RunHeldError naming another process that holds it, and ConfigError if the folder cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be made: {error.strerror}. Choose another output_dir=."
            ) from error
        try:
            lock = acquire(self.path / ".lock")
        except OSError as error:
            raise ResultsError(f"{self.path} cannot be locked: {error.strerror or error}.") from error
        if lock is None:
            raise self._held_error()
        try:
            with writing(self.path):
                tidy(self.path)
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
        """Write status.json: started, then success, error or interrupted.

        The file is removed if another process holds what the run needs: nothing was begun.
        """
        started = _now()
        self._write_status("started", started, None)
        try:
            yield
        except (KeyboardInterrupt, SystemExit) as stop:
            self._write_status("interrupted", started, type(stop).__name__)
            raise
        except LeaseLostError:
            raise  # the file is another process's now
        except RunHeldError:
            (self.path / "status.json").unlink()
            raise
        except BaseException as error:
            self._write_status("error", started, without_passwords(f"{type(error).__name__}: {error}"))
            raise
        self._write_status("success", started, None)

    def _write_status(self, status: str, started: str, error: str | None) -> None:
        ended = None if status == "started" else _now()
        content = {"status": status, "run_id": self.run_id, "pid": os.getpid(), "host": socket.gethostname()}
        try:
            write_json(
                self.path / "status.json", content | {"started": started, "ended": ended, "error": error}
            )
        except Exception:
            if status in ("started", "success"):
                raise
            # the error that ended the block is the one to report

    def _held_error(self) -> RunHeldError:
        return RunHeldError(
            f"{self.path.name} is held by {self._holder()}.\n"
            "Wait for it, or stop it; the same command then continues.",
            self.path,
        )

    def _holder(self) -> str:
        status = whole_mapping(self.path / "status.json") or {}
        if not {"pid", "host", "started"} <= status.keys():
            return "another process"
        return f"process {status['pid']} on {status['host']} since {status['started']}"


def version_marks(block: dict[str, Any]) -> list[str]:
    """A mark for each decisive package with another version now: "made with lm_eval 0.4.12, now 0.4.13"."""
    then, now = block.get("versions", {}), versions()
    return [
        f"made with {name} {then.get(name)}, now {now[name]}"
        for name in DECISIVE
        if then.get(name) != now[name]
    ]


def older_intervals(block: dict[str, Any]) -> bool:
    """Whether the intervals were computed by an earlier version and can be computed again from the stored answers."""
    return block.get("statistics") != statistics.VERSION and not version_marks(block)


def check_writable(output_dir: str) -> None:
    """Raise ConfigError if results cannot be written there. Makes no folder."""
    import shutil

    folder = Path(output_dir).absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise ConfigError(f"output_dir={output_dir}: {folder} is a file. Choose another output_dir=.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"output_dir={output_dir}: {folder} is not writable. Choose another output_dir=.")
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        raise ConfigError(
            f"output_dir={output_dir}: {free / 2**20:.0f} MiB are free on its disk, "
            f"{LEAST_FREE_BYTES / 2**20:.0f} MiB are needed. Free some, or choose another output_dir=."
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
