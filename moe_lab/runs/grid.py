"""`mode=run`, `mode=plan` and `mode=report` of a command line.

Each returns an object. The command line prints it; `moe_lab.run`, `plan` and `report` return it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.compose import Cell
from moe_lab.config.overrides import OWN_GRID
from moe_lab.config.recorded import recorded
from moe_lab.config.schema import Config, LauncherConfig, TuningConfig
from moe_lab.errors import CONTINUES, ConfigError, MoeLabError, RunHeldError, exit_code, print_error
from moe_lab.methods import get_method
from moe_lab.methods.method import ModelMaker
from moe_lab.reports.expert import comparisons, print_expert_metrics
from moe_lab.reports.scores import CommandTable
from moe_lab.results.atomic import write_atomically
from moe_lab.results.identity import folder_name, task_label
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import SeedGroup, family_of
from moe_lab.results.scores import ComparisonKey
from moe_lab.runs.attempts import Failure, is_worker, run_all
from moe_lab.runs.distributed import end_processes, follow
from moe_lab.runs.experiments.cells import (
    NOTHING_STORED,
    Experiments,
    jobs_of_cells,
    prepare_experiments,
    refused_of,
)
from moe_lab.runs.jobs import (
    Job,
    by_model,
    distinct_runs,
    jobs_of,
    repeated_studies,
    seeds_of,
    with_baselines,
)
from moe_lab.runs.launchers import check_launcher, working
from moe_lab.runs.plan import Plan, lacks_of, task_name
from moe_lab.runs.uploads import check_uploads, push_all

if TYPE_CHECKING:
    from pandas import DataFrame

    from moe_lab.models.memory import ModelPool
    from moe_lab.runs.run import Outcome

FOOTNOTES = 8
"""Most lines of methods below the tables of a command."""


@dataclass(kw_only=True)
class Finished:
    """What `mode=run` or `mode=report` leaves. `print` shows it as the command line does."""

    jobs: Sequence[Job] = ()
    outcomes: Sequence[Outcome] = ()
    """The results of the jobs' runs, each once."""
    failures: Sequence[Failure] = ()
    refused: Sequence[BaseException] = ()
    """The errors of cells of an experiment that cannot run."""
    studies: Sequence[Path] = ()
    """Folders of studies that are shown."""
    table: CommandTable = field(default_factory=lambda: CommandTable([]))
    tables: dict[str, DataFrame] = field(default_factory=dict)
    """The tables of experiments, by name."""
    files: Sequence[Path] = ()
    """What is printed last."""
    alone: bool = False
    """Whether there is one run at most, whose failure is told without its name."""
    code: int | None = None
    """Of a process of torchrun that followed process 0: its exit code."""

    @property
    def exit_code(self) -> int:
        """130 or 143 if interrupted, else 1 if a run failed, else 3 if one was held; of a single run its own."""
        if self.code is not None:
            return self.code
        errors = [*self.refused, *(failure.error for failure in self.failures)]
        stops = [error for error in errors if isinstance(error, KeyboardInterrupt)]
        failed = [error for error in errors if not isinstance(error, RunHeldError)]
        if first := errors if self.alone else stops:
            return exit_code(first[0])
        return 1 if failed else RunHeldError.exit_code if errors else 0

    @property
    def configs(self) -> dict[str, Config]:
        """The configurations of the runs and of those that they are compared with, by run id."""
        runs = with_baselines([outcome.run for outcome in self.outcomes])
        return {run.run_id: run.config for run in runs}

    def frame(self, all_settings: bool = False) -> DataFrame:
        """The score table as a data frame (`moe_lab.api.results.Results.frame`)."""
        from moe_lab.reports.frames import score_frame

        asked = [outcome.run.config for outcome in self.outcomes]
        return score_frame(self.table, self.configs, asked, all_settings)

    def print(self) -> None:
        """Print tables and paths, and the failures on stderr."""
        from moe_lab.reports.terminal import print_failed, print_studies

        print_studies(self.studies)
        known = {outcome.run.run_id for outcome in self.outcomes}
        without = [failure for failure in self.failures if failure.run_id not in known]
        if without and not self.alone and not self.tables:  # a run with a result has an upload that failed
            print_failed(_failed(without))
        if self.outcomes:
            print_results(self.outcomes, self.table)
        for file in self.files:
            print(file)
        for failure in self.failures:
            if not self.alone:
                print(f"{failure.name}:", file=sys.stderr)
            if isinstance(failure.error, KeyboardInterrupt):
                print(CONTINUES, file=sys.stderr)
            else:
                print_error(failure.error)


def do(mode: str, configs: Sequence[Config], cells: Sequence[Cell], argv: Sequence[str]) -> Finished | Plan:
    """What `mode` (run, plan or report) says of a grid, or with `experiment=` of the cells of papers' tables.

    Args:
        argv: the command line, which workers of `launcher=` get, too.
    """
    several = len(configs) > 1 or configs[0].num_seeds > 1 or configs[0].num_studies
    with_experiment = any(config.experiment for config in configs)
    if (several or with_experiment) and configs[0].logger.name == "wandb" and "WANDB_RUN_ID" in os.environ:
        raise ConfigError(
            f"WANDB_RUN_ID={os.environ['WANDB_RUN_ID']} is one run of W&B, and this command has several. "
            "Leave seeds=, tuning= and -m out, or unset the variable."
        )
    if with_experiment and len(configs) > 1:
        raise ConfigError(OWN_GRID)
    if configs[0].launcher.name != "none":
        check_launcher(configs)
    if not with_experiment:
        _check_keys(configs)
    if mode == "plan":
        return _plan(configs, cells)
    return _run(configs, cells, argv) if mode == "run" else _report(configs, cells)


def _run(configs: Sequence[Config], cells: Sequence[Cell], argv: Sequence[str]) -> Finished:
    """Train or run every configuration, and write summaries over seeds and the page, or the tables."""
    config = configs[0]
    if (code := follow(configs)) is not None:
        return Finished(code=code)
    makers = [issubclass(get_method(one.method.name), ModelMaker) for one in configs]
    if any(makers) and not all(makers):
        evaluating = configs[makers.index(False)].method.name
        raise ConfigError(f"method={evaluating} evaluates and others of this grid train. Train first.")
    if all(makers):
        seeded = [one for each in configs for one in seeds_of(each)]
        trained: list[Any] = [get_method(one.method.name)(one.method) for one in seeded]
        return Finished(files=[one.train(own) for one, own in zip(trained, seeded, strict=True)])
    experiments = _experiments(config, cells[0]) if config.experiment else []
    if experiments:
        if any(getattr(one.config.method, "push_to_hub", False) for _, of in experiments for one in of):
            raise ConfigError(
                "method.push_to_hub=true pushes the models of a command without experiment=. Leave it out, and push "
                "one by its own command."
            )
        jobs = jobs_of_cells(experiments)
        alone = not jobs
    else:
        jobs = jobs_of([replace(one, launcher=LauncherConfig()) for one in configs])
        check_uploads(jobs)
        alone = len(jobs) == 1 and len(jobs[0].runs) < 2
    with working(config, argv, jobs) as models:
        outcomes, failures = run_all(jobs, models, wait=config.wait)
    if is_worker():
        return Finished(failures=failures, alone=alone)
    finished = Finished(jobs=jobs, outcomes=outcomes, failures=failures, alone=alone)
    if experiments:
        finished = _with_tables(finished, experiments, config, models)
    else:
        finished.studies = [study.folder for job in jobs for study in job.studies]
        if outcomes:
            finished = _with_page(finished)
            _log_table(finished)
            finished.failures = [*failures, *push_all(outcomes, finished.table.family)]
    end_processes(finished.exit_code)
    return finished


def _failed(failures: Sequence[Failure]) -> dict[str, tuple[str, str]]:
    """The state and the reason of each cell without a result."""
    words = ((RunHeldError, "held"), (KeyboardInterrupt, "interrupted"), (BaseException, "failed"))
    return {
        one.name: (
            next(word for kind, word in words if isinstance(one.error, kind)),
            str(one.error).partition("\n")[0],
        )
        for one in failures
    }


def _plan(configs: Sequence[Config], cells: Sequence[Cell]) -> Plan:
    """The plan of the command, after its pilots. Loads no weights and writes nothing without them.

    Raises ConfigError with all that is missing if no configuration of a grid can run.
    """
    config = configs[0]
    if config.experiment:
        experiments = prepare_experiments(config, cells[0])
        return Plan(jobs_of_cells(experiments), refused_of(experiments), config.pilot)
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
    plan = Plan(by_model(jobs), refused, config.pilot)
    plan.exit_code = ConfigError.exit_code if refused else 0
    return plan


def _report(configs: Sequence[Config], cells: Sequence[Cell]) -> Finished:
    """Write the page or the tables of stored results; without a run to report on, the page that lists all of them.

    Raises ConfigError if there are none.
    """
    config = configs[0]
    if config.experiment:
        return stored_tables(_experiments(config, cells[0], compute=False), config)
    typed = {text.lstrip("+").partition("=")[0] for text in config.overrides}
    if len(configs) == 1 and typed <= {"mode", "output_dir"}:
        from moe_lab.reports.pages.listing_page import write_listing_page

        output = Path(config.output_dir)
        if (page := write_listing_page(output)) is None:
            raise ConfigError(f"Nothing is stored in {output}. output_dir= names another folder.")
        return Finished(files=[page])
    jobs = jobs_of(configs, compute=False)
    missing = [str(run.folder) for run in distinct_runs(jobs) if not run.done]
    for name in [*(job.name for job in jobs if not job.runs), *missing]:
        print(f"Not stored yet: {name}", file=sys.stderr)
    outcomes = stored_outcomes(jobs)
    if not outcomes:
        raise ConfigError(NOTHING_STORED)
    return _with_page(Finished(jobs=jobs, outcomes=outcomes))


def stored_tables(experiments: Experiments, config: Config) -> Finished:
    """Write the tables of stored results. Raises ConfigError if there are none."""
    from moe_lab.models.memory import ModelPool

    jobs = jobs_of_cells(experiments)
    finished = Finished(jobs=jobs, outcomes=stored_outcomes(jobs), alone=not jobs)
    return _with_tables(finished, experiments, config, ModelPool(), compute=False)


def _experiments(config: Config, cell: Cell, *, compute: bool = True) -> Experiments:
    """The experiments with their checked cells. Those that cannot run are printed."""
    experiments = prepare_experiments(config, cell, compute=compute)
    for reason, configs in refused_of(experiments).items():
        names = [f"{one.model.name}-{one.method.name}-{task_name(one)}" for one in configs]
        print(f"Cannot run {', '.join(names)}: {reason}", file=sys.stderr)
    return experiments


def stored_outcomes(jobs: Sequence[Job]) -> list[Outcome]:
    """The stored results of the jobs' runs. Nothing is computed."""
    from moe_lab.models.memory import ModelPool
    from moe_lab.runs.execute import execute

    return [execute(run, ModelPool(), compute=False) for run in distinct_runs(jobs) if run.done]


def _log_table(finished: Finished) -> None:
    """Send the score table of a command with several runs to its logger."""
    from moe_lab.reports.loggers import open_logger

    config, group = finished.jobs[0].config, finished.jobs[0].group
    if group is not None and config.logger.name != "none":
        with open_logger(config, kind="command", name=group, group=group) as logger:
            logger.log_table("scores", finished.frame())


def _with_page(finished: Finished) -> Finished:
    """The same with its table, after the summaries over seeds and the page are written."""
    from moe_lab.runs.summaries import write_summaries

    table = command_table(finished.outcomes, finished.jobs)
    write_summaries(table.groups)
    page = write_report(finished.outcomes, table)
    summaries = [group.file for group in table.groups if group.file is not None]
    files = [*summaries, page, *(outcome.path for outcome in finished.outcomes)]
    return replace(finished, table=table, files=files)


def _with_tables(
    finished: Finished, experiments: Experiments, config: Config, models: ModelPool, *, compute: bool = True
) -> Finished:
    """The same with its tables, after they are written."""
    from moe_lab.runs.experiments.runner import write_tables

    jobs, outcomes, failures = finished.jobs, finished.outcomes, finished.failures
    stored = stored_outcomes(jobs) if compute else []  # also of a run that failed with rerun=true
    by_id = {outcome.run.run_id: outcome for outcome in [*stored, *outcomes]}
    p_values = measured_p_values(outcomes)
    files, tables, family = write_tables(
        experiments, config, models, by_id, failures, p_values, compute=compute
    )
    return replace(
        finished,
        refused=[one.error for _, cells in experiments for one in cells if one.error is not None and compute],
        table=replace(command_table(outcomes, jobs), family=family) if outcomes else CommandTable([]),
        tables=tables,
        files=files,
    )


def command_table(outcomes: Sequence[Outcome], jobs: Sequence[Job]) -> CommandTable:
    """The scores of a command, and the families of its comparisons.

    Runs that others are compared with, such as calibration, are groups of their own. Those of a run with several seeds
    are left out, because a single seed has no test.
    """
    from moe_lab.runs.summaries import summarize

    groups = summarize(outcomes, repeated_studies(jobs))
    single = {group.results[0].run_id for group in groups if group.summary is None}
    shown = {outcome.run.run_id for outcome in outcomes}
    runs = [run for one in outcomes if one.run.run_id in single for run in one.run.compared_runs.values()]
    controls = {run.run_id: run.stored() for run in runs if run.run_id not in shown}
    others = [SeedGroup([stored]) for stored in controls.values() if stored is not None]
    not_asked = {result.run_id for group in others for result in group.results}
    family = family_of([*groups, *others], measured_p_values(outcomes), not_asked)
    return CommandTable(with_compared(outcomes), groups, family)


def measured_p_values(outcomes: Sequence[Outcome]) -> dict[ComparisonKey, float | None]:
    """The uncorrected p of each comparison in the tables of `metrics=`."""
    return comparisons(_measured(outcomes))


def _measured(outcomes: Sequence[Outcome]) -> list[RunResult]:
    """The results that the table of `metrics=` shows."""
    return with_compared([one for one in outcomes if one.run.config.metrics != "none"])


def _check_keys(configs: Sequence[Config]) -> None:
    """Raise ConfigError for several headline metrics of one run, and for keys of `tuning` where nothing is tuned."""
    asked: dict[str, str | None] = {}
    for config in configs:
        same = repr(replace(config, task=replace(config.task, metric=None), overrides=[]))
        if asked.setdefault(same, config.task.metric) != config.task.metric:
            raise ConfigError(
                f"task.metric={asked[same]},{config.task.metric}: a run has all metrics of its task, and a table shows "
                "one of them. Give one; the page and the run's results.json have all."
            )
    if any(config.tuning.name != "none" for config in configs):
        return
    defaults = asdict(TuningConfig())
    for key, value in recorded(configs[0])["tuning"].items():
        if value != defaults[key]:
            raise ConfigError(
                f"tuning.{key}={value} changes nothing: nothing is tuned. Add tuning=tpe or tuning=uniform, or leave "
                "it out."
            )


def with_compared(outcomes: Sequence[Outcome]) -> list[RunResult]:
    """The results in their order, each once and after the results that it is compared with."""
    own = {outcome.run.run_id: outcome.results for outcome in outcomes}
    runs = with_baselines([outcome.run for outcome in outcomes])
    results = [own[run.run_id] if run.run_id in own else run.stored() for run in runs]
    return [result for result in results if result is not None]


def print_results(outcomes: Sequence[Outcome], table: CommandTable) -> None:
    """Print the tables of results and of metrics, each run after those that it is compared with."""
    from moe_lab.reports.terminal import print_scores

    lines = sorted({line for run in table.runs for line in get_method(run.method).footnotes(run["moe_lab"])})
    if len(lines) > FOOTNOTES:
        lines[FOOTNOTES:] = [f"{len(lines) - FOOTNOTES} more lines about other runs: see their pages."]
    print_scores(table, lines)
    print_expert_metrics(_measured(outcomes), table.family)


def write_report(outcomes: Sequence[Outcome], table: CommandTable) -> Path:
    """Write the page of a grid, and `report.html`, a copy of the newest page, whose path is returned.

    The page is `<models>-<methods>-<tasks>-<id8>.html`, where the id is the SHA-256 of the run ids: the same runs have
    the same page, whatever their order.
    """
    from moe_lab.reports.pages.runs_page import write_runs_page

    results = [outcome.results for outcome in outcomes]
    digest = hashlib.sha256(" ".join(sorted(result.run_id for result in results)).encode()).hexdigest()
    tasks = [task for result in results for task in result.tasks]
    parts = ([result.model for result in results], [result.method for result in results], tasks)
    name = folder_name(*(task_label(dict.fromkeys(part)) for part in parts), digest=digest)
    output = Path(outcomes[0].run.config.output_dir)
    page, newest = output / "pages" / f"{name}.html", output / "report.html"
    write_runs_page(table, page)
    write_atomically(newest, page.read_bytes())
    return newest
