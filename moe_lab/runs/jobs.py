"""The jobs of a grid: of each configuration its runs, one per seed, and with tuning the studies before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.training_method import ModelMaker
from moe_lab.runs.config import in_cell

if TYPE_CHECKING:
    from moe_lab.models.pool import ModelPool
    from moe_lab.runs.run import Run
    from moe_lab.runs.tuning.study import Study

PROFILE = "profile"
"""As a cell's `method.temperature`: the temperatures that the study of its scale's `profile` finds."""


@dataclass
class Job:
    """A configuration, checked without weights, and its runs and studies."""

    config: Config
    studies: list[Study] = field(default_factory=list)
    """One study whose profile all runs use, or with `tuning.seeds` one per seed."""
    runs: list[Run] = field(default_factory=list)
    """One per seed; empty before the studies are finished, whose temperatures are part of the runs' identity."""

    group: str | None = None
    """The logger's group of the runs: the study or the experiment."""

    timed: bool = False
    """Whether its time is measured: nothing else may run meanwhile."""

    evaluated: Config | None = None
    """The configuration that is evaluated with the study's profile; None: the study's own."""

    @property
    def name(self) -> str:
        """For messages: the folder of the first unfinished study, else of the first run."""
        open_studies = [study for study in self.studies if study.profile() is None]
        return (open_studies or self.studies)[0].folder.name if self.studies else self.runs[0].folder.name

    def tune(self, models: ModelPool) -> None:
        """Finish the studies and prepare the runs with their profiles."""
        from moe_lab.runs.tuning.tune import tune

        for study in self.studies:
            tune(study, models)
        self.runs = self.runs_after()

    def runs_after(self) -> list[Run]:
        """The runs with the profiles of the finished studies."""
        if self.evaluated is not None:
            return runs_of(self.evaluated)
        return [run for study in self.studies for run in runs_of(study.tuned_config())]


def job_of(config: Config) -> Job:
    """The job of a configuration. Raises what `moe_lab.runs.prepare.prepare` raises; computes nothing."""
    if issubclass(get_method(config.method.name), ModelMaker):
        raise ConfigError(f"method={config.method.name} trains: it has mode=run only.")
    if config.tuning.name == "none":
        return Job(config, runs=runs_of(config))
    from moe_lab.runs.tuning.study import prepare_study

    seeds = range(config.seed, config.seed + config.num_studies)
    return _tuned_job(config, [prepare_study(replace(config, seed=seed)) for seed in seeds])


def jobs_of(configs: Sequence[Config]) -> list[Job]:
    """The jobs of a grid, ordered by model. Raises what `job_of` raises; the error names the cell."""
    jobs = []
    for config in configs:
        with in_cell(config.overrides, alone=len(configs) == 1):
            jobs.append(job_of(config))
    return by_model(jobs)


def job_after(study: Study, config: Config) -> Job:
    """The job of a configuration whose temperatures are those of another configuration's study."""
    evaluated = replace(config, method=replace(config.method, temperature=str(study.folder / "best.yaml")))
    return _tuned_job(config, [study], evaluated)


def _tuned_job(config: Config, studies: list[Study], evaluated: Config | None = None) -> Job:
    job = Job(config, studies, group=studies[0].folder.name, evaluated=evaluated)
    if all(study.profile() is not None for study in studies):
        job.runs = job.runs_after()
    return job


def runs_of(config: Config) -> list[Run]:
    """The runs of a configuration, one per seed."""
    from moe_lab.runs.prepare import prepare

    return [prepare(one) for one in seeds_of(config)]


def seeds_of(config: Config) -> list[Config]:
    """A configuration per seed; only one for a method without randomness."""
    count = config.num_seeds
    if count > 1 and not get_method(config.method.name)(config.method).random:
        count = 1
    return [replace(config, seed=config.seed + index) for index in range(count)]


def repeated_studies(jobs: Sequence[Job]) -> list[list[str]]:
    """The run ids of each job with a study per seed. Its runs differ in temperatures and share one summary."""
    return [[run.run_id for run in job.runs] for job in jobs if len(job.studies) > 1]


def by_model(jobs: Sequence[Job]) -> list[Job]:
    """The jobs grouped by model, so that each model is loaded once.

    Within a model, jobs with metrics=expert come first: their metrics are counted while answers are computed.
    """
    models = [repr((asdict(job.config.model), job.config.dtype, job.config.device)) for job in jobs]
    order = sorted(
        range(len(jobs)),
        key=lambda index: (models.index(models[index]), jobs[index].config.metrics != "expert"),
    )
    return [jobs[index] for index in order]


def distinct_runs(jobs: Sequence[Job]) -> list[Run]:
    """All runs of the jobs, each id once. Of two with the same id, one with metrics is preferred."""
    distinct: dict[str, Run] = {}
    for run in (run for job in jobs for run in job.runs):
        if run.run_id not in distinct or run.config.metrics != "none":
            distinct[run.run_id] = run
    return list(distinct.values())
