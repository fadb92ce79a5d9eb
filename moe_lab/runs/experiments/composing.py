"""The cells of an experiment, composed with the user's overrides."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

from moe_lab.config.compose import Cell, compose_cell
from moe_lab.config.hydra_errors import REQUEST_ERRORS, explain
from moe_lab.config.overrides import LAUNCHER
from moe_lab.config.schema import Config
from moe_lab.config.validators import did_you_mean
from moe_lab.errors import ConfigError
from moe_lab.methods import TEXT_KEYS, config_class, methods_with
from moe_lab.reports.papers.experiment import Experiment, Scale, find_experiments
from moe_lab.reports.papers.files import typed_settings
from moe_lab.runs.config import to_config

COMMAND_KEYS = ("experiment", "scale", "mode")
"""Keys of the command, which its cells do not get."""


class ComposedCell(NamedTuple):
    """A cell of an experiment, as Hydra composed it, and its typed configuration."""

    cell: Cell
    config: Config


@dataclass(frozen=True)
class Composed:
    """An experiment at one scale."""

    experiment: Experiment
    cells: list[ComposedCell]
    study: Config | None
    """The configuration of the study in the scale's `profile`; None without one."""


def compose_experiments(config: Config, base: Cell) -> list[Composed]:
    """The experiments in `config.experiment`, every cell composed with the user's overrides last.

    `method.<key>=` applies to cells whose method has that key. Raises ConfigError for a key that
    no cell has, and for other overrides that a cell does not accept.
    """
    assert config.experiment is not None
    config_dirs = [Path(folder) for folder in base.config_dirs]
    experiments = find_experiments(config.experiment, config_dirs)
    scales = [experiment.scale(config.scale) for experiment in experiments]
    if base.method_keys:
        _check_method_keys(config.experiment, experiments, scales, base)
    typed_texts = typed_settings([*_typed_overrides(base), *base.method_keys])
    composed = []
    for experiment, scale in zip(experiments, scales, strict=True):
        cells = [_compose(experiment, overrides, base) for overrides in scale.overrides()]
        study = None
        if scale.profile:
            study = _compose(experiment, scale.profile, base).config
        with_typed = replace(
            experiment, typed=typed_texts if cells else [], config_dirs=base.config_dirs
        )
        composed.append(Composed(with_typed, cells, study))
    return composed


def experiment_configs(config: Config, base: Cell) -> list[Config]:
    """The configurations of all cells and studies of the experiments in `config.experiment`."""
    configs: list[Config] = []
    studies: list[Config] = []
    for composed in compose_experiments(config, base):
        configs.extend(cell_config for _, cell_config in composed.cells)
        if composed.study is not None:
            studies.append(composed.study)
    return configs + studies


def _check_method_keys(
    names: str, experiments: Sequence[Experiment], scales: Sequence[Scale], base: Cell
) -> None:
    """Raise ConfigError for a typed `method.<key>=` that no cell of the experiments has."""
    known_keys: list[str] = []
    for experiment, scale in zip(experiments, scales, strict=True):
        for overrides in scale.overrides():
            known_keys += _keys_of_method(experiment, overrides, base)
    for override in base.method_keys:
        key = _method_key(override)
        if key not in known_keys:
            raise ConfigError(
                f"Unknown key 'method.{key}': no cell of experiment={names} has it."
                f"{did_you_mean(key, dict.fromkeys(known_keys))}"
            )


def _compose(experiment: Experiment, overrides: list[str], base: Cell) -> ComposedCell:
    """A cell of the experiment, with the typed keys that its method has."""
    method_keys: list[str] = []
    if base.method_keys:
        known_keys = _keys_of_method(experiment, overrides, base)
        for override in base.method_keys:
            if _method_key(override) in known_keys:
                method_keys.append(override)
    with _naming(experiment, overrides):
        cell = compose_cell(
            [*overrides, *_typed_overrides(base), *method_keys], base.config_dirs, TEXT_KEYS
        )
    return ComposedCell(cell, to_config(cell))


def _keys_of_method(experiment: Experiment, overrides: list[str], base: Cell) -> list[str]:
    """The keys that a cell's method has."""
    all_overrides = [*overrides, *_typed_overrides(base), *base.method_keys]
    chosen = ["method"]
    if "method=policy" in all_overrides:  # its other keys depend on the policy
        chosen.append("method.policy")
    choices = [override for override in all_overrides if _key(override) in chosen]
    with _naming(experiment, overrides):
        method = compose_cell(choices, base.config_dirs, TEXT_KEYS).values["method"]
    keys = [field.name for field in fields(config_class(method["name"], method))]
    return [*keys, *method]


@contextmanager
def _naming(experiment: Experiment, overrides: list[str]) -> Iterator[None]:
    """Turn Hydra's errors into a ConfigError that names the cell."""
    try:
        yield
    except REQUEST_ERRORS as error:
        raise ConfigError(
            f"experiment={experiment.name}, cell {' '.join(overrides)}: "
            f"{explain(error, methods_with)}\n"
            "What is typed with experiment= applies to every cell of its table, method.<key>= to "
            "those that have it."
        ) from error


def _typed_overrides(base: Cell) -> list[str]:
    """The overrides of the command line that go to every cell."""
    overrides = []
    for override in base.overrides:
        if _key(override) not in COMMAND_KEYS and not override.startswith(LAUNCHER):
            overrides.append(override)
    return overrides


def _key(override: str) -> str:
    """The key of an override, without "+"."""
    return override.partition("=")[0].lstrip("+")


def _method_key(override: str) -> str:
    """`phases` of `method.phases`, `+method.phases.0.lr` and so on."""
    return _key(override).split(".")[1]
