"""A study in a database of one's own: `tuning.storage=postgresql+psycopg2://host/db`.

Machines without a common file system share it. There is no lock between them: a process says every
few seconds that it still computes its trial, and one that has fallen silent has lost it.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from contextlib import suppress
from typing import Any

import optuna
from optuna.exceptions import (
    ExperimentalWarning,
    StorageInternalError,
    UpdateFinishedTrialError,
)
from optuna.storages import RDBStorage
from optuna.trial import Trial, TrialState
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from moe_lab.errors import ConfigError, first_line
from moe_lab.runs.tuning.trials import Trials

PASSWORD = "OPTUNA_STORAGE_PASSWORD"
"""The environment variable with the password of the database."""
ATTEMPTS = 4
"""Attempts to open the database, a second apart."""
HEARTBEAT = 5
"""Seconds between two signs of a process that computes a trial."""
SECRETS = frozenset({"password", "passwd", "sslpassword"})
"""Passwords in the query of a URL."""
SILENCE = 60
"""Seconds without a sign after which a trial is another process's to compute."""


def check_storage(url: str) -> None:
    """Raise ConfigError for a URL that cannot be used.

    SQLAlchemy cannot read it, it has a password, or it names no database outside this process.
    """
    try:
        parsed = make_url(url)
        dialect = parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise ConfigError(
            "tuning.storage is no URL of a database: sqlite:////folder/trials.db, or "
            "postgresql+psycopg2://user@host/database."
        ) from error
    if parsed.password is not None or not SECRETS.isdisjoint(parsed.query):
        shown = parsed.set(query={}).render_as_string(hide_password=True)
        raise ConfigError(
            f"tuning.storage={shown} has a password, which would be in files and logs. Leave "
            f"it out and set the variable {PASSWORD}."
        )
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigError(
            f"tuning.storage={url} is in the memory of one process. Name a file: "
            "sqlite:////folder/trials.db."
        )
    try:
        dialect.import_dbapi()
    except ImportError as error:
        raise ConfigError(
            f"tuning.storage={url} needs a driver that is not installed: {first_line(error)}."
        ) from error


class SharedTrials(Trials):
    """The trials of a study in a database. Its folder has the tables and figures, as without it."""

    _heart: Heart | None = None

    def _open_storage(self) -> RDBStorage:
        assert self.url is not None
        url = make_url(self.url)
        password = os.environ.get(PASSWORD)
        if password:
            url = url.set(password=password)
        # of heartbeats, which Optuna calls experimental, and of asking and telling with them
        warnings.filterwarnings("ignore", message=".*[Hh]eartbeat", module="optuna")
        for _ in range(ATTEMPTS - 1):
            # a process that begins at the same moment may be making the tables
            with suppress(SQLAlchemyError, StorageInternalError):
                return _storage(url)
            time.sleep(1)
        return _storage(url)

    def _abandoned(self) -> Trial | None:
        silent = self.storage._get_stale_trial_ids(self.study._study_id)
        for trial_id in silent:
            number = self.storage.get_trial_number_from_id(trial_id)
            self._begin(trial_id)
            return self._resumed(trial_id, number)
        return None

    def _next(self) -> Trial | None:
        """A new trial, which this process computes from now on; None after `n_trials`.

        `_draw` gives the parameters to a trial whose parameters are fixed.
        """
        number = len(self.study.get_trials(deepcopy=False))
        if number >= self.search.n_trials:
            return None
        if self.search.fixed(number) is None:
            self._set_sampler(number)
        trial = self.study.ask()
        if trial.number >= self.search.n_trials:  # another process has asked for the last one
            self.study.tell(trial, state=TrialState.FAIL)
            return None
        self._begin(trial._trial_id)
        return trial

    def _draw(self, trial: Trial) -> None:
        fixed = self.search.fixed(trial.number)
        if fixed is None:
            super()._draw(trial)
            return
        # a trial is not queued with its parameters, since another process could take its number
        others = optuna.samplers.RandomSampler()
        with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
            self.study.sampler = optuna.samplers.PartialFixedSampler(fixed, others)
        for name, bounds in self.search.bounds.items():
            trial.suggest_float(name, *bounds)

    def _begin(self, trial_id: int) -> None:
        self._heart = Heart(self.storage, trial_id)

    def _end(self) -> None:
        if self._heart is not None:
            self._heart.stop()
            self._heart = None

    def _store(self, trial: Trial, value: float | None, attributes: dict[str, float]) -> None:
        """Store it unless this process was silent, and another one has computed the trial."""
        if self.storage.get_trial(trial._trial_id).state.is_finished():
            return
        with suppress(UpdateFinishedTrialError):  # in between
            super()._store(trial, value, attributes)


def _storage(url: URL) -> RDBStorage:
    """The database, whose tables are made if they are missing. Raises its errors."""
    return RDBStorage(
        url.render_as_string(hide_password=False),
        heartbeat_interval=HEARTBEAT,
        grace_period=SILENCE,
    )


class Heart:
    """Records every few seconds that this process computes a trial, until it is stopped."""

    def __init__(self, storage: Any, trial_id: int):
        self._storage = storage
        self._trial_id = trial_id
        self._stopped = threading.Event()
        storage.record_heartbeat(trial_id)
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT):
            self._storage.record_heartbeat(self._trial_id)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
