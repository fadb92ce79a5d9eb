"""The jobs of a command: configurations with their studies, trainings and runs."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from moe_lab.config.schema import Config, LauncherConfig, LoggerConfig
from moe_lab.methods import get_method
from moe_lab.methods.profile import expecting
from moe_lab.models.memory import ModelPool
from moe_lab.results.names import folder_name, task_label
from moe_lab.runs.config import in_cell
from moe_lab.runs.prepare import prepare
from moe_lab.runs.run import Run
from moe_lab.runs.trainings import Training
from moe_lab.runs.tuning.prepare import prepare_study
from moe_lab.runs.tuning.study import Study

PROFILE = "profile"
"""As a cell's `method.temperature`: use the temperatures of the study in its scale's `profile`."""


@dataclass
class Job:
    """A configuration, checked without weights, and its runs and studies."""

    config: Config
    studies: list[Study] = field(default_factory=list)
    """One study whose profile all runs use, or with `tuning.seeds` one per seed."""
    runs: list[Run] = field(default_factory=list)
    """One per seed.

    Empty until the studies are finished, because the temperatures are part of a run's identity.
    """
    evaluated: Config | None = None
    """The configuration that is evaluated with the study's profile; None: the study's own."""
    trainings: list[Training] = field(default_factory=list)
    """The unfinished trainings of its models, one per seed; empty if all models are trained."""
    group: str | None = None
    """The logger's group of its runs and studies: the command or the experiment.

    None for a single run.
    """
    timed: bool = False
    """Whether its time is measured, so that nothing else may run at the same time."""

    def __post_init__(self) -> None:
        if self.studies and all(study.profile() is not None for study in self.studies):
            self._prepare_runs()

    def _prepare_runs(self) -> None:
        """Prepare the runs with the profiles of the finished studies."""
        self.runs = []
        for study in self.studies:
            self.runs += runs_of(self.evaluated or study.tuned_config())

    def expected_runs(self) -> list[Run]:
        """A run after each study; none without studies. The profile of an unfinished study is a
        placeholder.

        With several seeds after one study it is the run of the first seed.
        """
        runs = []
        for study in self.studies:
            with expecting(study.best, study.profile() or study.expected_profile()):
                runs.append(prepare(replace(self.evaluated or study.tuned_config(), seeds=1)))
        return runs

    @property
    def name(self) -> str:
        """The job's name in messages: the folder of what is computed next.

        That is the first training with the method and task after it, the first unfinished study, or
        the first run; the first study, if all are finished.
        """
        if self.trainings:
            task = task_label(self.config.task.name)
            return f"{self.trainings[0].folder.name}, then {self.config.method.name} on {task}"
        for study in self.studies:
            if study.profile() is None:
                return study.folder.name
        if self.studies:
            return self.studies[0].folder.name
        return self.runs[0].folder.name

    @property
    def folders(self) -> list[Path]:
        """The folders of its trainings and studies."""
        folders = [training.folder for training in self.trainings]
        folders += [study.folder for study in self.studies]
        return folders

    def is_stored(self) -> bool:
        """Whether the results of all its runs are stored, so that nothing is written."""
        from moe_lab.runs.execute import whole_result

        return bool(self.runs) and all(whole_result(run) is not None for run in self.runs)

    @property
    def coming(self) -> int:
        """The number of runs after the missing trainings and studies."""
        if self.trainings:
            return len(self.trainings)
        return max(len(seeds_of(self.config)), len(self.studies))

    def make_ready(self, models: ModelPool) -> None:
        """Finish the trainings and studies, and prepare the runs with their models and profiles."""
        from moe_lab.runs.tuning.tune import tune

        if self.trainings:
            trained = [training.make(models.free) for training in self.trainings]
            following = _job_of_models(self.config, trained)
            self.trainings = []
            self.studies = following.studies
            self.runs = following.runs
            self.check_judges()
        for study in self.studies:
            tune(study, models, self.group)
        if self.studies:
            self._prepare_runs()

    def check_judges(self) -> None:
        """Raise the error of a judge that cannot judge a missing result.

        Its key or its model may be missing.
        """
        for run in with_baselines(self.runs):
            if run.done:
                continue
            for judge in run.judges:
                judge.check()


def job_of(config: Config) -> Job:
    """The job of a configuration.

    Computes nothing. Raises the errors of `moe_lab.runs.prepare.prepare`.
    """
    if config.model.recipe is not None:
        return _job_of_recipe(config)
    if config.tuning.name == "none":
        return Job(config, runs=runs_of(config))
    studies = []
    for index in range(config.num_studies):
        studies.append(prepare_study(replace(config, seed=config.seed + index)))
    return Job(config, studies)


def _job_of_recipe(config: Config) -> Job:
    """The job of a model that is trained on first use.

    It has a training, and with tuning a study, for each seed.
    """
    trainings = []
    for seeded in consecutive_seeds(config):
        tuning = replace(seeded.tuning, seeds=1)
        trainings.append(Training(replace(seeded, seeds=1, tuning=tuning)))
    if not any(training.left() for training in trainings):
        return _job_of_models(config, [training.make() for training in trainings])
    # raises the errors of the first run after its training that need no weights
    first = trainings[0]
    evaluated = replace(first.evaluated, model=first.config.model)
    if config.tuning.name == "none":
        prepare(evaluated, first.facts)
    else:
        prepare_study(evaluated, first.facts)
    return Job(config, trainings=trainings)


def _job_of_models(config: Config, trained: Sequence[Config]) -> Job:
    """The job of a configuration with a trained model for each seed."""
    studies: list[Study] = []
    runs: list[Run] = []
    for evaluated in trained:
        job = job_of(evaluated)
        studies += job.studies
        runs += job.runs
    if studies:
        return Job(config, studies)
    return Job(config, runs=runs)


def jobs_of(configs: Sequence[Config], *, compute: bool = True) -> list[Job]:
    """The jobs of a grid, ordered by model.

    Raises the errors of `job_of`, with the name of the cell.

    Args:
        compute: whether missing results will be computed. If so, the judges are checked.
    """
    jobs = []
    for config in configs:
        with in_cell(config.overrides, alone=len(configs) == 1):
            job = job_of(config)
            if compute:
                job.check_judges()
        jobs.append(job)
    if len(jobs) > 1 or jobs[0].coming > 1 or jobs[0].studies:
        group = _group(configs)
        for job in jobs:
            job.group = group
    return by_model(jobs)


def _group(configs: Sequence[Config]) -> str:
    """The logger's group of a command: its models, methods and tasks, and an id."""
    models = [config.model.name for config in configs]
    methods = [config.method.name for config in configs]
    tasks = [task_label(config.task.name) for config in configs]
    labels = [task_label(dict.fromkeys(names)) for names in (models, methods, tasks)]
    return folder_name(*labels, digest=digest_of(configs))


def digest_of(configs: Sequence[Config]) -> str:
    """SHA-256 of the configurations of a command, whoever runs and logs it."""
    configurations = [
        replace(config, overrides=[], launcher=LauncherConfig(), logger=LoggerConfig(), rerun=False)
        for config in configs
    ]
    return hashlib.sha256(repr(configurations).encode()).hexdigest()


def job_after(study: Study, config: Config) -> Job:
    """The job of a configuration that uses the temperatures of another configuration's study."""
    evaluated = replace(config, method=replace(config.method, temperature=str(study.best)))
    return Job(config, [study], evaluated=evaluated)


def runs_of(config: Config) -> list[Run]:
    """The runs of a configuration, one per seed."""
    return [prepare(seeded) for seeded in seeds_of(config)]


def consecutive_seeds(config: Config) -> list[Config]:
    """A configuration for each of `num_seeds` seeds."""
    return [replace(config, seed=config.seed + index) for index in range(config.num_seeds)]


def seeds_of(config: Config) -> list[Config]:
    """A configuration per seed; only one for a method without randomness."""
    seeds = consecutive_seeds(config)
    if len(seeds) == 1 or get_method(config.method.name)(config.method).random:
        return seeds
    return seeds[:1]


def repeated_studies(jobs: Sequence[Job]) -> list[list[str]]:
    """The run ids of each job with a study or a model per seed.

    Its runs differ in these and share one summary.
    """
    repeated = []
    for job in jobs:
        if len(job.studies) > 1 or job.config.model.recipe is not None:
            repeated.append([run.run_id for run in job.runs])
    return repeated


def by_model(jobs: Sequence[Job]) -> list[Job]:
    """The jobs grouped by model, so that each model is loaded once.

    Within a model, jobs whose metrics are counted while answers are computed come first
    (metrics=expert).
    """
    number_of_model: dict[str, int] = {}

    def place(job: Job) -> tuple[int, bool]:
        """(the number of the job's model, in the order of the jobs; whether it counts no
        metrics)."""
        model = repr((asdict(job.config.model), job.config.dtype, job.config.device))
        number = number_of_model.setdefault(model, len(number_of_model))
        return number, job.config.metrics == "none"

    return sorted(jobs, key=place)


def distinct_runs(jobs: Sequence[Job]) -> list[Run]:
    """All runs of the jobs, each id once.

    A run with metrics is preferred over one of the same id without.
    """
    distinct: dict[str, Run] = {}
    for job in jobs:
        for run in job.runs:
            if run.run_id not in distinct or run.config.metrics != "none":
                distinct[run.run_id] = run
    return list(distinct.values())


def with_baselines(runs: Sequence[Run]) -> list[Run]:
    """The runs and those that they are compared with, each once. A run comes after the runs that it
    is compared with."""
    ordered: dict[str, Run] = {}
    for run in runs:
        for compared in run.compared_runs.values():
            ordered.setdefault(compared.run_id, compared)
        ordered.setdefault(run.run_id, run)
    return list(ordered.values())
