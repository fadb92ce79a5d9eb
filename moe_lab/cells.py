"""The cells of an experiment: each composed with what the user typed, and checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from moe_lab.compose import Cell, compose_cell
from moe_lab.config import Config
from moe_lab.convert import to_config
from moe_lab.errors import ConfigError, ModelError, MoeLabError, TaskError
from moe_lab.explain import REQUEST_ERRORS, explain
from moe_lab.jobs import Job, job_after, job_of
from moe_lab.reports.experiment import Experiment, find_experiments

if TYPE_CHECKING:
    from moe_lab.tuning.study import Study

OURS = ("experiment", "scale", "mode")
PROFILE = "method.temperature=profile"
"""In a cell: the temperatures that the study of its scale's `profile` finds."""


@dataclass
class Prepared:
    """A cell of an experiment, checked: its job, or why it cannot run."""

    cell: Cell
    config: Config
    job: Job | None
    error: BaseException | None = None


def prepare_cells(
    experiment: Experiment, config: Config, base: Cell, known: dict[str, Job]
) -> list[Prepared]:
    """Every cell of an experiment, composed with the user's own overrides last.

    `known` has the jobs of earlier experiments by configuration: a cell that several have is one job. Raises
    ConfigError where the overrides themselves are wrong; a cell without data or model is kept.
    """
    scale = experiment.scale(config.scale)
    tuned = _composed(experiment, scale.profile, base)[1] if scale.profile else None
    study = cache(lambda: _study(tuned))
    unreadable: dict[
        str, ModelError | TaskError
    ] = {}  # a hub that does not answer is asked once, a file sought once
    cells: list[Prepared] = []
    seen: set[str] = set()
    for overrides in scale.overrides():
        cell, typed = _composed(experiment, overrides, base)
        with_profile = PROFILE in overrides
        name = repr((replace(typed, overrides=[]), scale.profile if with_profile else None))
        if name in seen:  # what the user typed made two cells one
            continue
        seen.add(name)
        model = repr((typed.model, typed.method.name))  # a model without routers runs with method=base
        asked = (typed.method.name, getattr(typed.method, "reference", None))
        data = repr((typed.task, typed.data_dir, typed.limit, typed.samples, *asked))
        try:
            if known_error := unreadable.get(model) or unreadable.get(data):
                raise known_error
            if name not in known:
                known[name] = job_after(study(), typed) if with_profile else job_of(typed)
                known[name].group = known[name].group or experiment.name
            cells.append(Prepared(cell, typed, known[name]))
        except MoeLabError as error:
            if isinstance(error, ModelError | TaskError):
                unreadable[model if isinstance(error, ModelError) else data] = error
            cells.append(Prepared(cell, typed, None, error))
    return cells


def _composed(experiment: Experiment, overrides: list[str], base: Cell) -> tuple[Cell, Config]:
    extra = [override for override in base.overrides if override.partition("=")[0].lstrip("+") not in OURS]
    try:
        cell = compose_cell([*overrides, *extra], base.config_dirs)
    except REQUEST_ERRORS as error:
        raise ConfigError(
            f"experiment={experiment.name}, cell {' '.join(overrides)}: {explain(error)}\n"
            "What is typed beside experiment= applies to every cell of its table."
        ) from error
    return cell, to_config(cell)


def _study(config: Config | None) -> Study:
    from moe_lab.tuning.study import prepare_study

    if config is None:
        raise ConfigError(f"{PROFILE} needs `profile`, the overrides of a study, at this scale.")
    return prepare_study(config)


def experiment_configs(config: Config, cell: Cell) -> list[Config]:
    """The configuration of every cell of the experiments that `config.experiment` names, and of their studies."""
    assert config.experiment is not None
    configs = []
    for experiment in find_experiments(config.experiment):
        scale = experiment.scale(config.scale)
        studies = [scale.profile] if scale.profile else []
        configs += [_composed(experiment, overrides, cell)[1] for overrides in [*scale.overrides(), *studies]]
    return configs


def coordinate(prepared: Prepared, key: str) -> str:
    """What a cell is called on one axis: an option's name, or a dotted key's value; a dash where it has none."""
    if key == "model":
        return prepared.config.model.name
    if key in prepared.cell.choices:
        return prepared.cell.choices[key]
    value: Any = prepared.cell.values
    for part in key.split("."):
        value = value.get(part)
    return "-" if value is None else str(value)
