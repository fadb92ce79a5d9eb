"""The cells of an experiment with their jobs, checked before anything runs."""

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from moe_lab.config.compose import Cell
from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError, MoeLabError
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.runs.experiments.composing import Composed, compose_experiments
from moe_lab.runs.jobs import PROFILE, Job, by_model, job_after, job_of
from moe_lab.runs.tuning.prepare import prepare_study
from moe_lab.runs.tuning.study import Study

NOTHING_STORED = "Nothing of this is stored yet. The same command with mode=run computes it."


@dataclass
class PreparedCell:
    """A checked cell of an experiment: its job, or the error that prevents it."""

    cell: Cell
    config: Config
    job: Job | None
    error: BaseException | None = None


class PreparedExperiment(NamedTuple):
    """An experiment with its checked cells."""

    experiment: Experiment
    cells: list[PreparedCell]


def prepare_experiments(
    config: Config, cell: Cell, *, compute: bool = True
) -> list[PreparedExperiment]:
    """The experiments in `config.experiment`. Their cells share jobs.

    `compute` as in `prepare_cells`.
    """
    known: dict[str, Job] = {}
    experiments = []
    for composed in compose_experiments(config, cell):
        cells = prepare_cells(composed, known, compute=compute)
        experiments.append(PreparedExperiment(composed.experiment, cells))
    for job in known.values():
        job.group = config.experiment
    return experiments


def prepare_cells(
    composed: Composed, known: dict[str, Job], *, compute: bool = True
) -> list[PreparedCell]:
    """The cells of an experiment with their jobs.

    Cells that the user's overrides make equal become one. A cell without data or model is kept with
    its error.

    Args:
        known: the jobs of earlier experiments by `_job_key`; new ones are added. Equal cells share
            a job.
        compute: whether missing results will be computed. If so, the judges are checked.
    """
    study = cache(lambda: _study(composed.study))
    cells: list[PreparedCell] = []
    prepared: set[str] = set()
    for cell, config in composed.cells:
        with_profile = cell.values["method"].get("temperature") == PROFILE
        key = _job_key(config, composed.study if with_profile else None)
        if key in prepared:
            continue
        prepared.add(key)
        try:
            if key not in known:
                job = job_after(study(), config) if with_profile else job_of(config)
                if compute:
                    job.check_judges()
                known[key] = job
            if composed.experiment.figure == "overhead":  # it shows time and power
                known[key].timed = True
            cells.append(PreparedCell(cell, config, known[key]))
        except MoeLabError as error:
            cells.append(PreparedCell(cell, config, None, error))
    return cells


def _job_key(config: Config, study: Config | None) -> str:
    """A text that is equal for configurations with the same job, whatever their overrides.

    Args:
        study: the configuration of the study whose profile is used; None without one.
    """
    return repr((replace(config, overrides=[]), study))


def _study(config: Config | None) -> Study:
    """The study of a scale's `profile`. Raises ConfigError if the scale has none, or several."""
    if config is None:
        raise ConfigError(
            f"method.temperature={PROFILE} needs `profile` at this scale: a study's overrides."
        )
    if config.num_studies > 1:
        raise ConfigError(f"method.temperature={PROFILE} takes one study: leave tuning.seeds out.")
    return prepare_study(config)


def jobs_of_cells(experiments: list[PreparedExperiment]) -> list[Job]:
    """The jobs of all cells, each once and ordered by model."""
    jobs: dict[int, Job] = {}
    for prepared in experiments:
        for cell in prepared.cells:
            if cell.job is not None:
                jobs.setdefault(id(cell.job), cell.job)
    return by_model(list(jobs.values()))


def refused_of(experiments: list[PreparedExperiment]) -> dict[str, list[Config]]:
    """The configurations that cannot run, by reason."""
    refused: dict[str, list[Config]] = {}
    for prepared in experiments:
        for cell in prepared.cells:
            if cell.error is not None:
                refused.setdefault(str(cell.error), []).append(cell.config)
    return refused
