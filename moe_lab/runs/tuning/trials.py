"""The trials of a study on disk, shared by several processes. No trial is lost or computed twice.

A process claims one trial at a time, and holds a lock of its own until it ends. Another process takes over the trials
of an ended process, with their parameters.
"""

from __future__ import annotations

import csv
import sqlite3
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from filelock import BaseFileLock
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from moe_lab.errors import ConfigError, ResultsError, reading
from moe_lab.results.atomic import write_atomically, writing
from moe_lab.results.lock import acquire, check_lease_on, is_locked, lock_on
from moe_lab.results.stored_files import damaged, read_csv, tidy
from moe_lab.runs.tuning.search import Search
from moe_lab.runs.tuning.storage_url import shown_url

WORKER = "worker"
"""User attribute of a trial: the number of its process."""
STARTUP, STARTUP_TRIALS = "startup_trials", 10
"""User attribute of a study: the random trials before its sampler learns; and their largest number.

No trial is pruned before this number of complete ones.
"""
STORAGE = "storage.db"
TABLE = "trials.csv"
"""Written from the storage after every trial. If a value differs between the two, the storage is damaged."""
ANEW = "Move the study's folder away; the same command starts it again."
OWNER, OWNER_FILE = "folder", ".storage"
"""A study in a database belongs to one output folder, whose file locks coordinate its processes. Both have a token."""
MAX_WORKERS = 256
POLL_SECONDS = 0.5


@contextmanager
def storage_errors(folder: Path, storage: str | None = None) -> Iterator[None]:
    """Turn errors of Optuna's storage (full disk, damaged file, no database) into a ResultsError that names it."""
    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        if storage is not None:
            raise ResultsError(
                f"tuning.storage={shown_url(storage)} could not be read or written: {reason}\n"
                "The same command continues once the database answers."
            ) from error
        raise ResultsError(
            f"{folder / STORAGE} could not be read or written: {reason}\n"
            f"Free some disk space, and the same command continues. A damaged file: {ANEW[0].lower()}{ANEW[1:]}"
        ) from error


class Trials:
    """The trials of the study in `folder`. As a context manager it registers this process as a worker.

    Args:
        storage: URL of the database with the trials; None: a file in `folder`.
    """

    def __init__(self, folder: Path, search: Search, seed: int, storage: str | None = None):
        self.folder, self.search, self.seed, self.storage = folder, search, seed, storage
        self._lock = lock_on(folder / ".lock")

    def __enter__(self) -> Trials:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with writing(self.folder):
            (self.folder / ".workers").mkdir(parents=True, exist_ok=True)
        with self.locked():
            with writing(self.folder):
                tidy(self.folder)
            self._check_place()
            known = check_storage(self.folder / STORAGE) or self.storage
            if self.storage is None:
                with writing(self.folder):
                    (self.folder / STORAGE).touch()  # SQLite would make it 0644, whatever the umask
            self.worker, self._mine = self._register()
            self.study = optuna.create_study(
                storage=self._opened(),
                study_name=self.folder.name,
                direction=self.search.direction,
                load_if_exists=True,
            )
            with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
                self.study.set_metric_names([self.search.metric])
            if self.storage is not None:
                self._own()
            self._check(_values(self.folder / TABLE) if known else {})
            self.startup = self._startup()
        return self

    def _opened(self) -> optuna.storages.RDBStorage:
        """The storage. Raises ConfigError for one of a later Optuna, or for options that its driver does not have."""
        remedy = (
            ANEW if self.storage is None else "Correct the URL, or use the version of Optuna that wrote it."
        )
        with (
            reading(self._place, remedy, says="cannot be used"),
            storage_errors(self.folder, self.storage),
        ):
            return optuna.storages.RDBStorage(self.storage or _sqlite(self.folder / STORAGE))

    def __exit__(self, *exception: Any) -> None:
        self._mine.release()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the study's lock: one process at a time."""
        with self._lock:
            yield

    def claim(self) -> tuple[Trial, list[float]] | None:
        """The next trial and its temperatures; None after all trials, including those of other processes.

        With tuning=grid the temperatures are empty.
        """
        while True:
            with self.locked():
                self._check_mine()
                trial = self._abandoned() or self._next()
                if trial is not None:
                    trial.set_user_attr(WORKER, self.worker)
                    return trial, self._temperatures(trial)
                if not self._of(TrialState.RUNNING):
                    return None
            time.sleep(POLL_SECONDS)

    def tell(self, trial: Trial, value: float | None, **measured: float) -> None:
        """Store a trial's value (None: pruned), and other measurements as user attributes."""
        with self.locked():
            self._check_mine()
            for name, number in measured.items():
                trial.set_user_attr(name, number)
            state = TrialState.PRUNED if value is None else TrialState.COMPLETE
            self.study.tell(trial, value, state=state)

    def _check_mine(self) -> None:
        """Raise LeaseLostError if this worker's trials may be another process's by now."""
        check_lease_on(self._worker_file(self.worker))

    def finished(self) -> list[FrozenTrial]:
        """Complete and pruned trials, by number."""
        return self._of(TrialState.COMPLETE, TrialState.PRUNED)

    def best(self) -> FrozenTrial | None:
        """The first complete trial with the best value, which may be the untuned model."""
        complete = self._of(TrialState.COMPLETE)
        sign = 1 if self.search.direction == "minimize" else -1
        return min(complete, key=lambda trial: (sign * float(trial.value or 0), trial.number), default=None)

    def worst(self) -> float | None:
        """The worst value of a complete trial, after the sampler's random trials; None before."""
        values = [float(trial.value or 0) for trial in self._of(TrialState.COMPLETE)]
        if len(values) < self.startup:
            return None
        return max(values) if self.search.direction == "minimize" else min(values)

    def _startup(self) -> int:
        """The number of trials before the sampler learns: a third of the budget, at most `STARTUP_TRIALS`.

        A study keeps the number that it began with, so that trials do not depend on a later, larger budget.
        """
        if STARTUP not in self.study.user_attrs:
            begun = bool(self.study.get_trials(deepcopy=False))  # earlier studies always had ten
            most = STARTUP_TRIALS if begun else self.search.n_trials // 3
            self.study.set_user_attr(STARTUP, max(1, min(STARTUP_TRIALS, most)))
        return int(self.study.user_attrs[STARTUP])

    def _check_place(self) -> None:
        """Raise ConfigError if the study was begun in a database and goes on in a file, or the other way round."""
        if self.storage is None and (self.folder / OWNER_FILE).exists():
            raise ConfigError(
                f"The trials of {self.folder} are in a database. Give the same tuning.storage=."
            )
        if self.storage is not None and (self.folder / STORAGE).exists():
            raise ConfigError(
                f"The trials of {self.folder} are in {STORAGE}. Leave tuning.storage out, or move the folder away."
            )

    def _own(self) -> None:
        """Make the study in the database this folder's. Raises ConfigError if it is another folder's."""
        owner, file = self.study.user_attrs.get(OWNER), self.folder / OWNER_FILE
        mine = file.read_text() if file.exists() else None
        if owner is None:
            mine = mine or uuid.uuid4().hex
            write_atomically(file, mine)
            self.study.set_user_attr(OWNER, mine)
        elif owner != mine:
            raise ConfigError(
                f"The database of tuning.storage has the study {self.folder.name} of another output folder.\n"
                "Share that folder (output_dir=), or remove the study: optuna delete-study --study-name "
                f"{self.folder.name} --storage <URL>."
            )

    def _check(self, known: dict[int, float]) -> None:
        """Raise DamagedError for a stored trial that cannot be read, or with another value than in `known`."""
        try:
            values = {trial.number: trial.value for trial in self._of(TrialState.COMPLETE)}
        except Exception as error:  # Optuna fails in many ways on a damaged row
            raise damaged(self._place, repr(error), ANEW) from error
        for number, value in known.items():
            if values.get(number) != value:
                raise damaged(self._place, f"trial {number} is not the one of {TABLE}", ANEW)

    @property
    def _place(self) -> Path:
        """For messages: where the trials are."""
        return self.folder / STORAGE if self.storage is None else Path("tuning.storage")

    def _of(self, *states: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states)

    def _abandoned(self) -> Trial | None:
        for frozen in self._of(TrialState.RUNNING):
            worker = frozen.user_attrs.get(WORKER)
            if worker is None or worker == self.worker or not self._alive(worker):
                self._seed([frozen.number])
                return Trial(self.study, frozen._trial_id)
        return None

    def _next(self) -> Trial | None:
        waiting = self._of(TrialState.WAITING)
        number = len(self.study.get_trials(deepcopy=False))
        if not waiting:
            if number >= self.search.n_trials:
                return None
            if (fixed := self.search.fixed(number)) is not None:
                self.study.enqueue_trial(fixed)
        self._seed([number])
        return self.study.ask()

    def _temperatures(self, trial: Trial) -> list[float]:
        """Draw the missing parameters of a trial. Returns one temperature per MoE layer."""
        for place, name in enumerate(self.search.parameters):
            self._seed([trial.number, place])
            trial.suggest_float(name, *self.search.bounds(name))
        return self.search.temperatures(trial.params)

    def _seed(self, place: list[int]) -> None:
        """Give the study a new sampler with a seed of its own for this place: a trial, or a temperature of a trial.

        An interrupted study therefore draws the same values as an unbroken one.
        """
        others = any(self._alive(worker) for worker in self._workers() if worker != self.worker)
        self.study.sampler = self._sampler([self.seed, *place], others)

    def _sampler(self, seed: list[int], others: bool) -> optuna.samplers.BaseSampler:
        """The tuning's sampler: of `tpe` the paper's, which has the defaults of Optuna's TPE at that time, written out.

        TPE and the uniform control draw each temperature by itself. The Gaussian process chooses all temperatures of a
        trial at once, when the trial begins.
        """
        one = int(np.random.SeedSequence(seed).generate_state(1)[0])
        if self.search.tuning == "random":
            return optuna.samplers.RandomSampler(seed=one)
        if self.search.tuning == "gp":
            return optuna.samplers.GPSampler(seed=one, n_startup_trials=self.startup)
        return optuna.samplers.TPESampler(
            n_startup_trials=self.startup,
            n_ei_candidates=24,
            multivariate=False,
            constant_liar=others,
            seed=one,
        )

    def _register(self) -> tuple[int, BaseFileLock]:
        for worker in range(MAX_WORKERS):
            lock = acquire(self._worker_file(worker))
            if lock is not None:
                return worker, lock
        raise RuntimeError(f"{self.folder}: more than {MAX_WORKERS} processes share this study.")

    def _workers(self) -> list[int]:
        files = (self.folder / ".workers").glob("*.lock*")
        return sorted({int(file.name.partition(".")[0]) for file in files})

    def _alive(self, worker: int) -> bool:
        return is_locked(self._worker_file(worker))

    def _worker_file(self, worker: int) -> Path:
        return self.folder / ".workers" / f"{worker}.lock"


def check_storage(path: Path) -> bool:
    """Whether there is a storage. Raises DamagedError for a damaged SQLite database."""
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(path)) as connection:
            [(result,), *_] = connection.execute("PRAGMA integrity_check").fetchall()
    except sqlite3.Error as error:
        raise damaged(path, error, ANEW) from error
    if result != "ok":
        raise damaged(path, result, ANEW)
    return True


def _values(table: Path) -> dict[int, float]:
    """{number: value} of the complete trials in trials.csv; empty if it is absent or damaged, as it can be derived."""
    try:
        rows = [row for row in read_csv(table) if row["state"] == TrialState.COMPLETE.name]
        return {int(row["number"]): float(row["value"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return {}


def _sqlite(path: Path) -> str:
    from sqlalchemy.engine import URL

    return URL.create("sqlite", database=str(path)).render_as_string()
