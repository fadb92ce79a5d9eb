"""`tuning.sampler`, `tuning.pruner` and `tuning.storage`: classes of Optuna, by Hydra's `_target_`.

The other keys are arguments of the class:

    tuning.sampler._target_=optuna.samplers.CmaEsSampler tuning.sampler.n_startup_trials=3

https://optuna.readthedocs.io/en/stable/reference/samplers/index.html
"""

from __future__ import annotations

import hashlib
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from hydra.errors import InstantiationException
from hydra.utils import get_class, instantiate
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from sqlalchemy.exc import SQLAlchemyError

from moe_lab.config.validators import did_you_mean
from moe_lab.errors import ConfigError, first_line

TARGET = "_target_"
PACKAGES = ("optuna", "optunahub")
"""Packages whose classes are made. Those in a folder of `--config-dir` are, too."""
TRIED = 12
"""Trials that a sampler draws while it is checked: most draw the first ten at random, and then need
their packages and arguments."""
Bounds = Mapping[str, tuple[float, float]]
"""The smallest and the largest value of each parameter, by name."""


def check_objects(
    sampler: Mapping[str, Any], pruner: Mapping[str, Any], dirs: list[str], bounds: Bounds
) -> None:
    """Raise ConfigError for a sampler or pruner that cannot be made or cannot run.

    Args:
        dirs: the folder of `--config-dir`, if any.
        bounds: the parameters of the study, which the sampler draws a few times.
    """
    if pruner:
        pruner_of(pruner, dirs)
    if not sampler:
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if "seed" in sampler:
        raise ConfigError("tuning.sampler.seed is not taken: it is a key of the run. Use seed=.")
    if isinstance(sampler_of(sampler, dirs, seed=0), optuna.samplers.GridSampler):
        raise ConfigError(
            f"tuning.sampler.{TARGET}={sampler[TARGET]} is not taken: it ends a study itself, and "
            "tuning.n_trials= says how long it is. QMCSampler spreads trials as evenly."
        )
    study = optuna.create_study()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in range(TRIED):
                study.sampler = sampler_of(sampler, dirs, seed=number)
                trial = study.ask()
                values = [trial.suggest_float(name, *limits) for name, limits in bounds.items()]
                study.tell(trial, sum(values))
    except ConfigError:
        raise
    except Exception as error:  # of the sampler's own package: cmaes asserts
        raise ConfigError(f"tuning.sampler: {first_line(error)}") from error


def sampler_of(settings: Mapping[str, Any], dirs: list[str], seed: int) -> BaseSampler:
    """The sampler, with `seed` if its class takes one. Raises ConfigError."""
    key = "tuning.sampler"
    with _importable(dirs):
        parameters = _parameters(settings, key, dirs)
        seeded = dict(settings)
        if "seed" in parameters:
            seeded["seed"] = seed
        return _made(seeded, key, BaseSampler)


def pruner_of(settings: Mapping[str, Any], dirs: list[str]) -> BasePruner:
    """The pruner. Raises ConfigError."""
    key = "tuning.pruner"
    check_class(settings, key, dirs)
    with _importable(dirs):
        return _made(settings, key, BasePruner)


def storage_of(settings: Mapping[str, Any], dirs: list[str]) -> BaseStorage:
    """The storage, opened. Raises ConfigError, and the errors of a database."""
    try:
        with _importable(dirs):
            return _made(settings, "tuning.storage", BaseStorage)
    except ConfigError as error:
        database_error = getattr(error.__cause__, "__cause__", None)
        if not isinstance(database_error, StorageInternalError | SQLAlchemyError):
            raise
    raise database_error


def check_class(settings: Mapping[str, Any], key: str, dirs: list[str]) -> None:
    """Raise ConfigError for a class that is not made here, and for an argument that it does not
    take."""
    with _importable(dirs):
        _parameters(settings, key, dirs)


def seed_of_trial(settings: Mapping[str, Any], study_seed: int, number: int) -> int:
    """The seed of the sampler of a trial: an interrupted study draws the same as an unbroken one.

    A quasi-random sequence has one seed, since its trials are points of one sequence.
    """
    if str(settings[TARGET]).endswith(".QMCSampler"):
        return study_seed
    return int(np.random.SeedSequence([study_seed, number]).generate_state(1)[0])


def code_of(objects: Sequence[Mapping[str, Any]], dirs: list[str]) -> dict[str, str]:
    """SHA-256 of the module files in these folders whose classes the settings name, by module."""
    digests = {}
    for settings in objects:
        module = str(settings.get(TARGET, "")).partition(".")[0]
        for folder in dirs:
            file = Path(folder, f"{module}.py")
            if file.is_file():
                digests[module] = hashlib.sha256(file.read_bytes()).hexdigest()
    return digests


def _parameters(settings: Mapping[str, Any], key: str, dirs: list[str]) -> Mapping[str, Parameter]:
    """The parameters of the class. Raises ConfigError for a class that is not made here, and for an
    argument that it does not take."""
    _check_targets(settings, key, dirs)
    log = logging.getLogger("hydra")
    level = log.level
    try:
        log.setLevel(logging.CRITICAL)  # it logs the error that is raised, too
        found = get_class(settings[TARGET])
    except Exception as error:  # whatever the import of the module raises
        reason = first_line(error.__cause__ or error)
        module, _, name = settings[TARGET].rpartition(".")
        classes = vars(sys.modules[module]) if module in sys.modules else {}
        raise ConfigError(
            f"{key}.{TARGET}={settings[TARGET]}: {reason}.{did_you_mean(name, classes)}"
        ) from error
    finally:
        log.setLevel(level)
    parameters = signature(found).parameters
    takes_any = any(item.kind is Parameter.VAR_KEYWORD for item in parameters.values())
    for name in settings:
        if name not in parameters and not name.startswith("_") and not takes_any:
            raise ConfigError(
                f"Unknown argument {key}.{name} of {settings[TARGET]}."
                f"{did_you_mean(name, parameters)}\nArguments: {', '.join(parameters)}."
            )
    return parameters


def _check_targets(value: Any, key: str, dirs: list[str], *, is_root: bool = True) -> None:
    """Raise ConfigError for a `_target_` outside the allowed packages, here or deeper."""
    if isinstance(value, Mapping):
        target = value.get(TARGET)
        if is_root and not isinstance(target, str):
            raise ConfigError(f"{key}.{TARGET} is missing: {key}.{TARGET}=optuna.<module>.<class>.")
        if target is not None:
            package = str(target).partition(".")[0]
            if package not in (*PACKAGES, *_modules_in(dirs)):
                raise ConfigError(
                    f"{key}.{TARGET}={target}: only classes of {', '.join(PACKAGES)} "
                    "and of modules in the folder of --config-dir are made."
                )
        for name, item in value.items():
            _check_targets(item, f"{key}.{name}", dirs, is_root=False)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            _check_targets(item, key, dirs, is_root=False)


def _modules_in(dirs: list[str]) -> list[str]:
    """The names of the Python modules in these folders."""
    names = []
    for folder in dirs:
        names += [path.stem for path in Path(folder).glob("*.py")]
    return names


@contextmanager
def _importable(dirs: list[str]) -> Iterator[None]:
    """Let Python import the modules in these folders, after those of the installed packages."""
    sys.path.extend(dirs)
    try:
        yield
    finally:
        for folder in dirs:
            sys.path.remove(folder)


def _made(settings: Mapping[str, Any], key: str, kind: type) -> Any:
    """An instance of the class that `settings` name. Raises ConfigError if it is none of `kind`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            made = instantiate(dict(settings), _convert_="all")
    except InstantiationException as error:
        reason = first_line(error.__cause__ or error)
        raise ConfigError(f"{key}: {reason}") from error
    if not isinstance(made, kind):
        raise ConfigError(f"{key}.{TARGET}={settings[TARGET]} is no {kind.__name__} of Optuna.")
    return made
