"""`mode=run`, `mode=plan` and `mode=report` of a command line.

Each returns an object. The command line prints it; `moe_lab.run`, `plan` and `report` return it.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from moe_lab.config.compose import Cell
from moe_lab.config.overrides import OWN_GRID
from moe_lab.config.schema import Config, LauncherConfig
from moe_lab.config.terminal import print_message
from moe_lab.errors import ConfigError, MoeLabError
from moe_lab.methods import get_method
from moe_lab.methods.method import ModelMaker, refuse
from moe_lab.models.distributed import num_processes
from moe_lab.models.memory import ModelPool
from moe_lab.reports.loggers import open_logger
from moe_lab.reports.pages.runs_page import write_runs_page
from moe_lab.reports.scores import CommandTable
from moe_lab.results.atomic import write_atomically
from moe_lab.results.folder import check_writable, why_not_writable
from moe_lab.results.names import folder_name, task_label
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
from moe_lab.runs.launchers import after_workers, check_launcher, end_with_command
from moe_lab.runs.plan import Plan
from moe_lab.runs.planning.lacks import lacks_of
from moe_lab.runs.planning.rows import task_name
from moe_lab.runs.results import Results, command_table, stored_outcomes
from moe_lab.runs.run import Outcome
from moe_lab.runs.summaries import write_summaries


def do(mode: str, configs: Sequence[Config], cells: Sequence[Cell], argv: Sequence[str]) -> Any:
    """What `mode` says of a grid, or with `experiment=` of the cells of papers' tables.

    Returns a `Plan` for mode=plan, `Results` for mode=run and mode=report.

    `argv`: the command line, which workers of `launcher=` get, too.
    """
    makers = [
        issubclass(get_method(one.method.name), ModelMaker) and not one.experiment
        for one in configs
    ]
    if any(makers):
        return _make_models(configs, makers)
    several = len(configs) > 1 or configs[0].num_seeds > 1 or configs[0].num_studies
    with_experiment = any(config.experiment for config in configs)
    if (
        (several or with_experiment)
        and configs[0].logger.name == "wandb"
        and "WANDB_RUN_ID" in os.environ
    ):
        raise ConfigError(
            f"WANDB_RUN_ID={os.environ['WANDB_RUN_ID']} is one run of W&B, and this command has several. "
            "Leave seeds=, tuning= and -m out, or unset the variable."
        )
    if with_experiment and len(configs) > 1:
        raise ConfigError(OWN_GRID)
    if configs[0].launcher.name != "none":
        check_launcher(configs)
    idle = [one for one in configs[0].overrides if one.lstrip("+").startswith("tuning.")]
    if idle and not with_experiment and all(config.tuning.name == "none" for config in configs):
        raise ConfigError(
            f"{' '.join(idle)} changes nothing without tuning. Add tuning=tpe or leave it out."
        )
    asked: dict[str, str | None] = {}
    for config in configs:
        run = repr(replace(config, task=replace(config.task, metric=None), overrides=[]))
        if asked.setdefault(run, config.task.metric) != config.task.metric:
            raise ConfigError(
                f"task.metric: {asked[run]} and {config.task.metric} are of one run, and a table shows one metric. "
                "Give one; results.json has all."
            )
    if mode == "plan":
        return _plan(configs, cells)
    return _run(configs, cells, argv) if mode == "run" else _report(configs, cells)


def _make_models(configs: Sequence[Config], makers: Sequence[bool]) -> Results:
    """Train the model of every configuration. Raises ConfigError for what else a command may do with runs."""
    config, trains = configs[0], f"method={configs[makers.index(True)].method.name} trains"
    refuse(
        {
            "One method of this grid evaluates and another one trains. Train first.": not all(
                makers
            ),
            f"{trains}: it has mode=run only.": config.mode != "run",
            f"{trains} one model, which workers cannot share. Leave launcher= out.": (
                config.launcher.name != "none"
            ),
            f"{trains} in one process: start it without torchrun.": num_processes() > 1,
        }
    )
    follow(configs)  # forgets what a launcher of one process has set
    seeded = [one for each in configs for one in seeds_of(each)]
    methods: list[Any] = [get_method(one.method.name)(one.method) for one in seeded]
    return Results(files=[method.train(one) for method, one in zip(methods, seeded, strict=True)])


def _run(configs: Sequence[Config], cells: Sequence[Cell], argv: Sequence[str]) -> Results:
    """Run every configuration, and write summaries over seeds and the page, or the tables."""
    config = configs[0]
    end_with_command()
    if (code := follow(configs)) is not None:
        return Results(code=code)
    experiments = _experiments(config, cells[0]) if config.experiment else []
    if experiments:
        jobs = jobs_of_cells(experiments)
        alone = not jobs
    else:
        jobs = jobs_of([replace(one, launcher=LauncherConfig()) for one in configs])
        alone = len(jobs) == 1 and len(jobs[0].runs) < 2
    writable = why_not_writable(config.output_dir) is None
    if not writable and not all(job.is_stored() for job in jobs):
        check_writable(config.output_dir)
    models = ModelPool()
    with after_workers(config, argv):
        outcomes, failures = run_all(jobs, models, wait=config.wait)
    if is_worker():
        return Results(failures=failures, alone=alone)
    finished = Results(jobs=jobs, outcomes=outcomes, failures=failures, alone=alone)
    if experiments:
        finished = with_tables(finished, experiments, config, models)
    else:
        finished.studies = [study.folder for job in jobs for study in job.studies]
        if outcomes:
            finished = _with_page(finished)
            if (group := jobs[0].group) is not None and config.logger.name != "none":
                with open_logger(config, kind="command", name=group, group=group) as logger:
                    logger.log_table("scores", finished.frame())
    end_processes(finished.exit_code)
    return finished


def _plan(configs: Sequence[Config], cells: Sequence[Cell]) -> Plan:
    """The plan of the command. Loads no weights and writes nothing.

    Raises ConfigError with all that is missing if no configuration of a grid can run.
    """
    config = configs[0]
    if config.experiment:
        experiments = prepare_experiments(config, cells[0])
        return Plan(jobs_of_cells(experiments), refused_of(experiments))
    jobs: list[Job] = []
    refused: dict[str, list[Config]] = {}
    for one in configs:
        try:
            jobs += jobs_of([one])
        except MoeLabError as error:
            for reason in lacks_of(one, error):
                refused.setdefault(reason, []).append(one)
    if not jobs:
        raise ConfigError("\n".join(refused))
    plan = Plan(by_model(jobs), refused)
    plan.exit_code = ConfigError.exit_code if refused else 0
    return plan


def _report(configs: Sequence[Config], cells: Sequence[Cell]) -> Results:
    """Write the page or the tables of stored results, where that can be. Raises ConfigError if there are none."""
    config = configs[0]
    if config.experiment:
        return stored_tables(_experiments(config, cells[0], compute=False), config)
    jobs = jobs_of(configs, compute=False)
    missing = [str(run.folder) for run in distinct_runs(jobs) if not run.done]
    for name in [*(job.name for job in jobs if not job.runs), *missing]:
        print_message(f"Not stored yet: {name}")
    outcomes = stored_outcomes(jobs)
    if not outcomes:
        raise ConfigError(NOTHING_STORED)
    return _with_page(Results(jobs=jobs, outcomes=outcomes))


def stored_tables(experiments: list[PreparedExperiment], config: Config) -> Results:
    """Write the tables of stored results. Raises ConfigError if there are none."""
    jobs = jobs_of_cells(experiments)
    finished = Results(jobs=jobs, outcomes=stored_outcomes(jobs), alone=not jobs)
    return with_tables(finished, experiments, config, ModelPool(), compute=False)


def _experiments(config: Config, cell: Cell, *, compute: bool = True) -> list[PreparedExperiment]:
    """The experiments with their checked cells. Those that cannot run are printed."""
    experiments = prepare_experiments(config, cell, compute=compute)
    for reason, configs in refused_of(experiments).items():
        names = [f"{one.model.name}-{one.method.name}-{task_name(one)}" for one in configs]
        print_message(f"Cannot run {', '.join(names)}: {reason}")
    return experiments


def _with_page(finished: Results) -> Results:
    """The same with its table, after the summaries over seeds and the page are written.

    A folder that cannot be written is read: its results have no page then.
    """
    table = command_table(finished.outcomes, finished.jobs)
    reason = why_not_writable(finished.outcomes[0].run.config.output_dir)
    if reason is not None:
        print_message(f"{reason}: no page is written.")
        return replace(finished, table=table, files=[outcome.path for outcome in finished.outcomes])
    write_summaries(table.groups)
    page = write_report(finished.outcomes, table)
    summaries = [group.file for group in table.groups if group.file is not None]
    files = [*summaries, page, *(outcome.path for outcome in finished.outcomes)]
    return replace(finished, table=table, files=files)


def write_report(outcomes: Sequence[Outcome], table: CommandTable) -> Path:
    """Write the page of a grid, and `report.html`, a copy of the newest page, whose path is returned.

    The page is `<models>-<methods>-<tasks>-<id8>.html`, where the id is the SHA-256 of the run ids: the same runs have
    the same page, whatever their order.
    """
    results = [outcome.results for outcome in outcomes]
    digest = hashlib.sha256(
        " ".join(sorted(result.run_id for result in results)).encode()
    ).hexdigest()
    tasks = [task for result in results for task in result.task.tasks]
    parts = (
        [result.model.name for result in results],
        [result.method.name for result in results],
        tasks,
    )
    name = folder_name(*(task_label(dict.fromkeys(part)) for part in parts), digest=digest)
    output = Path(outcomes[0].run.config.output_dir)
    page, newest = output / "pages" / f"{name}.html", output / "report.html"
    write_runs_page(table, page)
    write_atomically(newest, page.read_bytes())
    return newest
