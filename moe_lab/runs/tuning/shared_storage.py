"""A study in a storage of Optuna that machines share: `tuning.storage`.

    tuning.storage=postgresql+psycopg2://host/db
    tuning.storage._target_=optuna.storages.GrpcStorageProxy tuning.storage.host=head-node

Machines without a common file system share it. There is no lock between them: a process gives a
sign every few seconds that it still computes its trial, and one that has fallen silent has lost it.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.exceptions import (
    ExperimentalWarning,
    StorageInternalError,
    UpdateFinishedTrialError,
)
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from moe_lab.config.doors import URL_WITH_PASSWORD
from moe_lab.errors import ConfigError, first_line
from moe_lab.runs.tuning.optuna_objects import TARGET, check_class, storage_of
from moe_lab.runs.tuning.search import Search
from moe_lab.runs.tuning.trials import Trials

DATABASE = "optuna.storages.RDBStorage"
"""The storage of a URL."""
PASSWORD = "OPTUNA_STORAGE_PASSWORD"
"""The environment variable with the password of the database."""
ATTEMPTS = 4
"""Attempts to open the storage, a second apart."""
HEARTBEAT = 5
"""Seconds between two signs of a process that computes a trial."""
SIGN = "moe_lab:sign"
"""The system attribute of a trial with the time of the last sign."""
SECRETS = frozenset({"password", "passwd", "sslpassword"})
"""Passwords in the query of a URL."""
SILENCE = 60
"""Seconds without a sign after which a trial is another process's to compute."""
_ANOTHER = "a trial whose machine fell silent is computed by another one"
REFUSED = {
    "failed_trial_callback": _ANOTHER,
    "grace_period": "a machine is silent after a minute",
    "heartbeat_stale_trial_callback": _ANOTHER,
    "heartbeat_interval": "every storage gets a sign every few seconds",
}
"""Arguments of RDBStorage that are not taken, with the reason."""


def storage_settings(storage: str | Mapping[str, Any]) -> dict[str, Any]:
    """`tuning.storage` as a class and its arguments: a URL is that of a database."""
    if isinstance(storage, str):
        return {TARGET: DATABASE, "url": storage}
    return dict(storage)


def check_storage(storage: str | Mapping[str, Any], dirs: list[str]) -> None:
    """Raise ConfigError for a storage that cannot be used. Nothing is opened.

    Args:
        dirs: the folder of `--config-dir`, if any.
    """
    key = "tuning.storage"
    if isinstance(storage, str):
        _check_url(key, storage)
        return
    check_class(storage, key, dirs)
    for name, reason in REFUSED.items():
        if name in storage:
            raise ConfigError(f"{key}.{name} is not taken: {reason}.")
    if str(storage[TARGET]).endswith(".InMemoryStorage"):
        raise ConfigError(
            f"{key}.{TARGET}={storage[TARGET]} is in the memory of one process. Leave it out, and "
            "the study's folder has the trials."
        )
    if storage[TARGET] == DATABASE:
        _check_url(f"{key}.url", str(storage.get("url")))
    _check_passwords(storage, key)


def _check_passwords(settings: Mapping[str, Any], key: str) -> None:
    """Raise ConfigError for a URL with a password, here or deeper, as that of Redis."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            _check_passwords(value, f"{key}.{name}")
        elif name in SECRETS or URL_WITH_PASSWORD.search(str(value)):
            raise _password_in(f"{key}.{name}")


def _password_in(key: str) -> ConfigError:
    return ConfigError(
        f"{key} has a password, which would be in files and logs. Leave it out and set the "
        f"variable {PASSWORD}."
    )


def _check_url(key: str, url: str) -> None:
    """Raise ConfigError for a URL that SQLAlchemy cannot read, one with a password, and one that
    names no database outside this process."""
    try:
        parsed = make_url(url)
        dialect = parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise ConfigError(
            f"{key} is no URL of a database: sqlite:////folder/trials.db, or "
            "postgresql+psycopg2://user@host/database."
        ) from error
    if parsed.password is not None or not SECRETS.isdisjoint(parsed.query):
        shown = parsed.set(query={}).render_as_string(hide_password=True)
        raise _password_in(f"{key}={shown}")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigError(
            f"{key}={url} is in the memory of one process. Name a file: sqlite:////folder/trials.db."
        )
    try:
        dialect.import_dbapi()
    except ImportError as error:
        raise ConfigError(
            f"{key}={url} needs a driver that is not installed: {first_line(error)}."
        ) from error


def _with_password(settings: Mapping[str, Any], password: str) -> dict[str, Any]:
    """The settings with the password in their URL, here or deeper."""
    complete = dict(settings)
    for name, value in settings.items():
        if isinstance(value, Mapping):
            complete[name] = _with_password(value, password)
        elif name == "url":
            url = make_url(value).set(password=password)
            complete[name] = url.render_as_string(hide_password=False)
    return complete


class Seen(NamedTuple):
    """The last sign of a trial's process that this process saw, and when, by its own clock."""

    sign: Any
    time: float


class SharedTrials(Trials):
    """The trials of a study in a storage of Optuna. Its folder has the tables and figures, as
    without it."""

    def __init__(self, folder: Path, search: Search, seed: int, storage: str | Mapping[str, Any]):
        super().__init__(folder, search, seed)
        self._settings = storage_settings(storage)
        self._heart: Heart | None = None
        self._seen: dict[int, Seen] = {}
        """By the number of a trial that another process computes."""

    def _open_storage(self) -> BaseStorage:
        settings = self._settings
        password = os.environ.get(PASSWORD)
        if password:
            settings = _with_password(settings, password)
        dirs = self.search.class_folders
        for _ in range(ATTEMPTS - 1):
            # a process that begins at the same moment may be making the tables
            with suppress(SQLAlchemyError, StorageInternalError):
                return storage_of(settings, dirs)
            time.sleep(1)
        return storage_of(settings, dirs)

    def _abandoned(self) -> Trial | None:
        for frozen in self._of(TrialState.RUNNING):
            if self._is_silent(frozen):
                self._begin(frozen._trial_id)
                return self._resumed(frozen._trial_id, frozen.number)
        return None

    def _is_silent(self, trial: FrozenTrial) -> bool:
        """Whether the process of a trial has given no sign for `SILENCE` seconds, during which this
        process has looked: clocks of machines may differ."""
        sign = trial.system_attrs.get(SIGN)
        now = time.monotonic()
        seen = self._seen.get(trial.number)
        if seen is None or seen.sign != sign:
            self._seen[trial.number] = Seen(sign, now)
            return False
        return now - seen.time > SILENCE

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


class Heart:
    """Records every few seconds that this process computes a trial, until it is stopped."""

    def __init__(self, storage: BaseStorage, trial_id: int):
        self._storage = storage
        self._trial_id = trial_id
        self._stopped = threading.Event()
        self._sign()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT):
            with suppress(UpdateFinishedTrialError):  # by a process that took this one for silent
                self._sign()

    def _sign(self) -> None:
        self._storage.set_trial_system_attr(self._trial_id, SIGN, time.time())

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
