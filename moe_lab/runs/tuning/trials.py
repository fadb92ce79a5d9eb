"""The trials of a study in Optuna's storage, shared by several processes.

No trial is lost or computed twice.

A process holds a lock on the trial that it computes. A running trial whose lock is free has lost
its process: the next process that asks for a trial computes it, with the same parameters.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from filelock import BaseFileLock
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.trial import FrozenTrial, Trial, TrialState

from moe_lab.errors import ResultsError
from moe_lab.results.atomic import writing
from moe_lab.results.locks import acquire, lock_on
from moe_lab.results.stored_files import tidy
from moe_lab.runs.tuning.optuna_objects import pruner_of, sampler_of, seed_of_trial
from moe_lab.runs.tuning.search import Search

STARTUP = "startup_trials"
"""User attribute of a study: the random trials before its sampler learns.

They are a third of the first `n_trials`, at most STARTUP_TRIALS. No trial is pruned before this
number of complete ones.
"""
STARTUP_TRIALS = 10
STORAGE = "storage.db"
STORAGE_PACKAGES = ("sqlalchemy", "grpc", "redis")
"""Packages whose errors are those of a storage."""


@contextmanager
def storage_errors(folder: Path, shared: str | None) -> Iterator[None]:
    """Turn errors of Optuna's storage, as of a full disk, into a ResultsError that names it.

    Args:
        shared: the storage of `SharedTrials`, as messages name it; None: a file of the folder.
    """
    try:
        yield
    except Exception as error:
        package = type(error).__module__.partition(".")[0]
        if not isinstance(error, StorageInternalError) and package not in STORAGE_PACKAGES:
            raise
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        if package == "grpc":
            reason = error.details()  # type: ignore[attr-defined]
        if shared is not None:
            raise ResultsError(
                f"tuning.storage={shared} could not be read or written: {reason}\n"
                "Once it answers, the same command continues."
            ) from error
        raise ResultsError(
            f"{folder / STORAGE} could not be read or written: {reason}\n"
            "Free some disk space, and the same command continues. "
            "If the file is damaged, move its folder away."
        ) from error


class Trials:
    """The trials of the study in `folder`, inside its context."""

    def __init__(self, folder: Path, search: Search, seed: int):
        self.folder = folder
        self.search = search
        self.seed = seed
        self.minimizes = search.direction == "minimize"
        self.lock = lock_on(folder / ".lock")
        """The study's lock: one process at a time."""
        self._trial_lock: BaseFileLock | None = None
        """The lock on this process's trial."""

    def __enter__(self) -> Trials:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with writing(self.folder):
            (self.folder / ".trials").mkdir(parents=True, exist_ok=True)
        with self.lock:
            with writing(self.folder):
                tidy(self.folder)
            self.storage = self._open_storage()
            self.study = optuna.create_study(
                storage=self.storage,
                study_name=self.folder.name,
                direction=self.search.direction,
                load_if_exists=True,
            )
            with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
                self.study.set_metric_names([self.search.metric])
            if STARTUP not in self.study.user_attrs:
                self.study.set_user_attr(
                    STARTUP, max(1, min(STARTUP_TRIALS, self.search.n_trials // 3))
                )
            self.startup = int(self.study.user_attrs[STARTUP])
            if self.search.pruner:
                self.study.pruner = pruner_of(self.search.pruner, self.search.class_folders)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._end()

    def _open_storage(self) -> optuna.storages.BaseStorage:
        return optuna.storages.RDBStorage(f"sqlite:///{self.folder / STORAGE}")

    def claim(self) -> Trial | None:
        """The next trial with its parameters.

        None after all trials, including those of other processes.
        """
        while True:
            with self.lock:
                trial = self._abandoned() or self._next()
                if trial is not None:
                    self._draw(trial)
                    return trial
                if not self._of(TrialState.RUNNING):
                    return None
            time.sleep(0.5)

    def _draw(self, trial: Trial) -> None:
        """Give the trial the parameters that it does not have yet."""
        for place, (name, bounds) in enumerate(self.search.bounds.items()):
            if not self.search.sampler:
                self.study.sampler = self._sampler(trial.number, place)
            trial.suggest_float(name, *bounds)

    def tell(self, trial: Trial, value: float | None, **attributes: float) -> None:
        """Store a trial's value (None: pruned) and user attributes."""
        with self.lock:
            self._store(trial, value, attributes)
            self._end()

    def _store(self, trial: Trial, value: float | None, attributes: dict[str, float]) -> None:
        for name, number in attributes.items():
            trial.set_user_attr(name, number)
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        self.study.tell(trial, value, state=state)

    def _end(self) -> None:
        """Give up what shows other processes that this one computes a trial."""
        if self._trial_lock is not None:
            self._trial_lock.release()
            self._trial_lock = None

    def finished(self) -> list[FrozenTrial]:
        """Complete and pruned trials, by number."""
        return self._of(TrialState.COMPLETE, TrialState.PRUNED)

    def best(self) -> FrozenTrial | None:
        """The first complete trial with the best value, which may be the untuned model; None before
        a trial is complete."""
        sign = 1 if self.minimizes else -1

        def rank(trial: FrozenTrial) -> tuple[float, int]:
            """(value, the lower the better; number)."""
            return sign * float(trial.value or 0), trial.number

        return min(self._of(TrialState.COMPLETE), key=rank, default=None)

    def worst(self) -> float | None:
        """The worst value of a complete trial, after the sampler's random trials; None before."""
        values = [float(trial.value or 0) for trial in self._of(TrialState.COMPLETE)]
        if len(values) < self.startup:
            return None
        return max(values) if self.minimizes else min(values)

    def _of(self, *states: TrialState) -> list[FrozenTrial]:
        """The trials in one of these states, by number."""
        return self.study.get_trials(deepcopy=False, states=states)

    def _abandoned(self) -> Trial | None:
        """A running trial whose process is gone, which this process holds from now on; None if
        there is none."""
        for frozen in self._of(TrialState.RUNNING):
            if self._hold(frozen.number):
                return self._resumed(frozen._trial_id, frozen.number)
        return None

    def _resumed(self, trial_id: int, number: int) -> Trial:
        """A trial that another process began, with the parameters that it has."""
        self._set_sampler(number)
        return Trial(self.study, trial_id)

    def _set_sampler(self, number: int) -> None:
        """Set the sampler of `tuning.sampler`, if there is one, with a seed for this trial.

        It is set before the trial is made, because it may then draw all parameters at once.
        """
        given = self.search.sampler
        if given:
            seed = seed_of_trial(given, self.seed, number)
            self.study.sampler = sampler_of(given, self.search.class_folders, seed)

    def _hold(self, number: int) -> bool:
        """Lock a trial for this process; False if another one holds it."""
        self._trial_lock = acquire(self.folder / ".trials" / f"{number}.lock")
        return self._trial_lock is not None

    def _next(self) -> Trial | None:
        """A waiting or new trial, which this process holds from now on; None after `n_trials`."""
        waiting = self._of(TrialState.WAITING)
        number = len(self.study.get_trials(deepcopy=False))
        if not waiting:
            if number >= self.search.n_trials:
                return None
            fixed = self.search.fixed(number)
            if fixed is not None:
                self.study.enqueue_trial(fixed)
        self._set_sampler(number)
        trial = self.study.ask()
        self._hold(trial.number)
        return trial

    def _sampler(self, number: int, place: int) -> optuna.samplers.BaseSampler:
        """The sampler of one temperature of a trial, with a seed of its own.

        An interrupted study therefore draws the same values as an unbroken one. The TPE sampler is
        the paper's: the defaults of Optuna at that time, written out.

        Args:
            number: the trial's.
            place: of the temperature among those of the trial.
        """
        seed = int(np.random.SeedSequence([self.seed, number, place]).generate_state(1)[0])
        if self.search.tuning == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        return optuna.samplers.TPESampler(
            n_startup_trials=self.startup,
            n_ei_candidates=24,
            multivariate=False,
            constant_liar=any(trial.number != number for trial in self._of(TrialState.RUNNING)),
            seed=seed,
        )
