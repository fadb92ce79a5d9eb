"""`mode=run`, `mode=plan` and `mode=report` of a command line.

Each returns an object. The command line prints it; `moe_lab.run`, `plan` and `report` return it.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from moe_lab.config.compose import Cell
from moe_lab.config.overrides import OWN_GRID
from moe_lab.config.schema import Config, LauncherConfig
from moe_lab.config.terminal import print_message
from moe_lab.errors import ConfigError, MoeLabError
from moe_lab.methods import get_method
from moe_lab.methods.method import ModelMaker
from moe_lab.models.distributed import num_processes
from moe_lab.models.memory import ModelPool
from moe_lab.reports.loggers import open_logger
from moe_lab.results.folder import check_writable, why_not_writable
from moe_lab.runs.attempts import is_worker, run_all
from moe_lab.runs.distributed import end_processes, follow
from moe_lab.runs.experiments.cells import (
    NOTHING_STORED,
    PreparedExperiment,
    jobs_of_cells,
    prepare_experiments,
    refused_of,
)
from moe_lab.runs.experiments.runner import with_tables
from moe_lab.runs.jobs import Job, by_model, distinct_runs, jobs_of, seeds_of
from moe_lab.runs.launchers import after_workers, check_launcher
from moe_lab.runs.outcomes import stored_outcomes
from moe_lab.runs.page import with_page
from moe_lab.runs.plan import Plan
from moe_lab.runs.planning.lacks import lacks_of
from moe_lab.runs.planning.rows import task_name
from moe_lab.runs.results import Results
from moe_lab.runs.worker import end_with_command


def do(mode: str, configs: Sequence[Config], cells: Sequence[Cell], argv: Sequence[str]) -> Any:
    """Run, plan or report a grid, or with `experiment=` the cells of papers' tables.

    Returns a `Plan` for mode=plan, `Results` for mode=run and mode=report. Raises ConfigError for
    configurations that one command cannot have.

    Args:
        argv: the command line, which workers of `launcher=` get, too.
    """
    makers = [config for config in configs if _makes_a_model(config)]
    if makers:
        return _make_models(configs, makers)
    with_experiment = any(config.experiment for config in configs)
    _check_one_logged_run(configs, with_experiment)
    if with_experiment and len(configs) > 1:
        raise ConfigError(OWN_GRID)
    if configs[0].launcher.name != "none":
        check_launcher(configs)
    if not with_experiment:
        _check_tuning_keys(configs)
    _check_one_metric(configs)
    if mode == "plan":
        return _plan(configs, cells)
    if mode == "run":
        return _run(configs, cells, argv)
    return _report(configs, cells)


def _check_one_logged_run(configs: Sequence[Config], with_experiment: bool) -> None:
    """Raise ConfigError if WANDB_RUN_ID names one run and the command has several."""
    config = configs[0]
    has_several_runs = len(configs) > 1 or config.num_seeds > 1 or config.num_studies
    if not has_several_runs and not with_experiment:
        return
    if config.logger.name == "wandb" and "WANDB_RUN_ID" in os.environ:
        raise ConfigError(
            f"WANDB_RUN_ID={os.environ['WANDB_RUN_ID']} is one run of W&B, and this command has "
            "several. Leave seeds=, tuning= and -m out, or unset the variable."
        )


def _check_tuning_keys(configs: Sequence[Config]) -> None:
    """Raise ConfigError for keys of tuning where no configuration is tuned."""
    keys = []
    for override in configs[0].overrides:
        if override.lstrip("+").startswith("tuning."):
            keys.append(override)
    if keys and all(config.tuning.name == "none" for config in configs):
        raise ConfigError(
            f"{' '.join(keys)} changes nothing without tuning. Add tuning=tpe or leave it out."
        )


def _check_one_metric(configs: Sequence[Config]) -> None:
    """Raise ConfigError for one run that is asked for with two headline metrics."""
    metrics: dict[str, str | None] = {}
    for config in configs:
        metric = config.task.metric
        task = replace(config.task, metric=None)
        run = repr(replace(config, task=task, overrides=[]))  # equal for configurations of one run
        first = metrics.setdefault(run, metric)
        if first != metric:
            raise ConfigError(
                f"task.metric: {first} and {metric} are of one run, and a table shows one metric. "
                "Give one; results.json has all."
            )


def _makes_a_model(config: Config) -> bool:
    """Whether the command trains a model and evaluates none."""
    return issubclass(get_method(config.method.name), ModelMaker) and not config.experiment


def _make_models(configs: Sequence[Config], makers: Sequence[Config]) -> Results:
    """Train the model of every configuration. The results are the files of the models alone.

    Raises ConfigError for a grid that also evaluates, another mode than run, launcher= and
    torchrun.
    """
    config = configs[0]
    trains = f"method={makers[0].method.name} trains"
    if len(makers) < len(configs):
        raise ConfigError("One method of this grid evaluates and another one trains. Train first.")
    if config.mode != "run":
        raise ConfigError(f"{trains}: it has mode=run only.")
    if config.launcher.name != "none":
        raise ConfigError(f"{trains} one model, which workers cannot share. Leave launcher= out.")
    if num_processes() > 1:
        raise ConfigError(f"{trains} in one process: start it without torchrun.")
    follow(configs)  # forgets what a launcher of one process has set
    seeded: list[Config] = []
    for config in configs:
        seeded += seeds_of(config)
    methods: list[Any] = [get_method(config.method.name)(config.method) for config in seeded]
    files = []
    for method, config in zip(methods, seeded, strict=True):
        files.append(method.train(config))
    return Results(files=files)


def _run(configs: Sequence[Config], cells: Sequence[Cell], argv: Sequence[str]) -> Results:
    """Run every configuration, and write summaries over seeds and the page, or the tables.

    A worker writes neither, and a process of torchrun other than process 0 returns its exit code
    alone.
    """
    config = configs[0]
    end_with_command()
    code = follow(configs)
    if code is not None:
        return Results(code=code)

    experiments = _experiments(config, cells[0]) if config.experiment else []
    if experiments:
        jobs = jobs_of_cells(experiments)
        is_alone = not jobs
    else:
        jobs = jobs_of([replace(cell, launcher=LauncherConfig()) for cell in configs])
        is_alone = len(jobs) == 1 and len(jobs[0].runs) < 2
    is_writable = why_not_writable(config.output_dir) is None
    if not is_writable and not all(job.is_stored() for job in jobs):
        check_writable(config.output_dir)

    models = ModelPool()
    with after_workers(config, argv):
        outcomes, failures = run_all(jobs, models, wait=config.wait)
    if is_worker():
        return Results(failures=failures, alone=is_alone)

    finished = Results(jobs=jobs, outcomes=outcomes, failures=failures, alone=is_alone)
    if experiments:
        finished = with_tables(finished, experiments, config, models)
    else:
        studies = []
        for job in jobs:
            studies += [study.folder for study in job.studies]
        finished.studies = studies
        if outcomes:
            finished = with_page(finished)
            _log_scores(finished, config, jobs[0].group)
    end_processes(finished.exit_code)
    return finished


def _log_scores(finished: Results, config: Config, group: str | None) -> None:
    """Send the score table of a command with several runs to its logger."""
    if group is None or config.logger.name == "none":
        return
    with open_logger(config, kind="command", name=group, group=group) as logger:
        logger.log_table("scores", finished.frame())


def _plan(configs: Sequence[Config], cells: Sequence[Cell]) -> Plan:
    """The plan of the command. Loads no weights and writes nothing.

    Raises ConfigError with all that is missing if no configuration of a grid can run.
    """
    if configs[0].experiment:
        experiments = prepare_experiments(configs[0], cells[0])
        return Plan(jobs_of_cells(experiments), refused_of(experiments))
    jobs: list[Job] = []
    refused: dict[str, list[Config]] = {}
    for config in configs:
        try:
            jobs += jobs_of([config])
        except MoeLabError as error:
            for reason in lacks_of(config, error):
                refused.setdefault(reason, []).append(config)
    if not jobs:
        raise ConfigError("\n".join(refused))
    plan = Plan(by_model(jobs), refused)
    if refused:
        plan.exit_code = ConfigError.exit_code
    return plan


def _report(configs: Sequence[Config], cells: Sequence[Cell]) -> Results:
    """Write the page or the tables of stored results. Raises ConfigError if there are none."""
    config = configs[0]
    if config.experiment:
        return stored_tables(_experiments(config, cells[0], compute=False), config)
    jobs = jobs_of(configs, compute=False)
    missing = [job.name for job in jobs if not job.runs]
    missing += [str(run.folder) for run in distinct_runs(jobs) if not run.done]
    for name in missing:
        print_message(f"Not stored yet: {name}")
    outcomes = stored_outcomes(jobs)
    if not outcomes:
        raise ConfigError(NOTHING_STORED)
    return with_page(Results(jobs=jobs, outcomes=outcomes))


def stored_tables(experiments: list[PreparedExperiment], config: Config) -> Results:
    """Write the tables of stored results. Raises ConfigError if there are none."""
    jobs = jobs_of_cells(experiments)
    finished = Results(jobs=jobs, outcomes=stored_outcomes(jobs), alone=not jobs)
    return with_tables(finished, experiments, config, ModelPool(), compute=False)


def _experiments(config: Config, cell: Cell, *, compute: bool = True) -> list[PreparedExperiment]:
    """The experiments with their checked cells. Those that cannot run are printed."""
    experiments = prepare_experiments(config, cell, compute=compute)
    for reason, configs in refused_of(experiments).items():
        names = []
        for refused in configs:
            names.append(f"{refused.model.name}-{refused.method.name}-{task_name(refused)}")
        print_message(f"Cannot run {', '.join(names)}: {reason}")
    return experiments
