"""`experiment=`: runs the missing cells of a paper's tables, continues after failed cells, and writes the tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.config.compose import Cell
from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError
from moe_lab.reports.csv_rows import write_rows
from moe_lab.reports.pages.tables_page import write_tables_page
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import TABLES, Experiment
from moe_lab.reports.papers.files import file_stem
from moe_lab.reports.papers.markdown import markdown
from moe_lab.reports.papers.ranking import p_values
from moe_lab.reports.papers.table import table_of
from moe_lab.reports.scores import CommandTable
from moe_lab.results.atomic import json_text, write_file
from moe_lab.results.folder import check_writable
from moe_lab.results.identity import folder_name
from moe_lab.results.score_table import Family
from moe_lab.runs.attempts import Failure, is_worker, run_all
from moe_lab.runs.distributed import end_processes, follow
from moe_lab.runs.experiments.cells import PreparedCell, compose_experiments, filled, prepare_cells
from moe_lab.runs.grid import NOTHING_STORED, Finished, command_table, measured_p_values, stored_outcomes
from moe_lab.runs.jobs import Job, by_model, digest_of
from moe_lab.runs.launchers import check_launcher, working
from moe_lab.runs.plan import Plan, plan_of, task_name

if TYPE_CHECKING:
    from pandas import DataFrame

    from moe_lab.models.memory import ModelPool
    from moe_lab.runs.run import Outcome

Filled = list[tuple[Experiment, list[TableCell]]]
"""Experiments with the cells of their tables."""


@dataclass(frozen=True)
class PreparedExperiments:
    """Experiments with their checked cells. A cell has a job, or the error that prevents it."""

    experiments: list[tuple[Experiment, list[PreparedCell]]]

    @property
    def cells(self) -> list[PreparedCell]:
        """The cells of all experiments."""
        return [cell for _, cells in self.experiments for cell in cells]

    @property
    def jobs(self) -> list[Job]:
        """The jobs of all cells, each once and ordered by model."""
        return by_model(
            list({id(cell.job): cell.job for cell in self.cells if cell.job is not None}.values())
        )

    @property
    def refused(self) -> dict[str, list[Config]]:
        """The configurations that cannot run, by reason."""
        refused: dict[str, list[Config]] = {}
        for cell in self.cells:
            if cell.error is not None:
                refused.setdefault(str(cell.error), []).append(cell.config)
        return refused


def run_experiments(config: Config, cell: Cell, argv: Sequence[str]) -> Finished:
    """Run the experiments that `config.experiment` names and write their tables. `argv` as of `run_grid`."""
    if (code := follow([config])) is not None:
        return Finished(code=code)
    prepared = _prepare(config, cell)
    if any(getattr(each.config.method, "push_to_hub", False) for each in prepared.cells):
        raise ConfigError(
            "method.push_to_hub=true pushes the models of a command without experiment=. Leave it out, and push one "
            "by its own command."
        )
    finished = make_tables(prepared, config, argv)
    end_processes(finished.exit_code)
    return finished


def planned_experiments(config: Config, cell: Cell) -> Plan:
    """The plan of the experiments, after their pilots. Loads no weights and writes nothing without them."""
    prepared = _prepare(config, cell)
    return plan_of(prepared.jobs, prepared.refused, config.pilot)


def report_experiments(config: Config, cell: Cell) -> Finished:
    """Write the tables of stored results. Raises ConfigError if there are none."""
    return make_tables(_prepare(config, cell, compute=False), config)


def _prepare(config: Config, cell: Cell, *, compute: bool = True) -> PreparedExperiments:
    if config.launcher.name != "none":
        check_launcher([config])
    composed = compose_experiments(config, cell)
    check_writable(config.output_dir)
    known: dict[str, Job] = {}
    experiments = [(each.experiment, prepare_cells(each, known, compute=compute)) for each in composed]
    for job in known.values():
        job.group = config.experiment
    return PreparedExperiments(experiments)


def make_tables(prepared: PreparedExperiments, config: Config, argv: Sequence[str] | None = None) -> Finished:
    """Run the jobs, or without a command line read their stored results, and write the tables."""
    from moe_lab.models.memory import ModelPool

    for reason, configs in prepared.refused.items():
        names = [f"{one.model.name}-{one.method.name}-{task_name(one)}" for one in configs]
        print(f"Cannot run {', '.join(names)}: {reason}", file=sys.stderr)
    jobs, models = prepared.jobs, ModelPool()
    outcomes: list[Outcome] = []
    failures: list[Failure] = []
    if argv is not None:
        with working(config, argv, jobs) as models:
            outcomes, failures = run_all(jobs, models, wait=config.wait)
        if is_worker():
            return Finished(failures=failures)
    stored = stored_outcomes(jobs)  # also of a run that failed with rerun=true
    shown = stored if argv is None else outcomes
    tables, family = _filled(prepared, config, [*stored, *outcomes], failures, shown)
    files, frames = _write(tables, config, models, family, compute=argv is not None)
    refused = [one.error for one in prepared.cells if one.error is not None and argv is not None]
    return Finished(
        jobs=jobs,
        outcomes=shown,
        failures=failures,
        refused=refused,
        table=replace(command_table(shown, jobs), family=family) if shown else CommandTable([]),
        tables=frames,
        files=files,
        alone=not jobs,
    )


def _filled(
    prepared: PreparedExperiments,
    config: Config,
    outcomes: Sequence[Outcome],
    failures: Sequence[Failure],
    shown: Sequence[Outcome],
) -> tuple[Filled, Family]:
    """The tables, and the families of the comparisons in them and in the `shown` metrics. The last outcome counts."""
    by_id = {outcome.run.run_id: outcome for outcome in outcomes}
    tables = [filled(one, config.scale, cells, by_id, failures) for one, cells in prepared.experiments]
    in_tables = {key: p for table in tables for key, p in p_values(*table).items()}
    return tables, Family.of(in_tables, measured_p_values(shown))


def _write(
    tables: Filled, config: Config, models: ModelPool, family: Family, *, compute: bool
) -> tuple[list[Path], dict[str, DataFrame]]:
    """Write the tables and figures. Returns their files, and the tables by name.

    A table of which no cell is measured is only listed on the page. Raises ConfigError with `compute=False` if nothing
    is stored.
    """
    from moe_lab.reports.frames import typed_frame
    from moe_lab.reports.loggers import open_logger
    from moe_lab.runs.experiments.figures import make_figure

    folder = Path(config.output_dir) / "tables"
    unmeasured = [
        experiment.name
        for experiment, cells in tables
        if cells and not any(cell.results or cell.studies for cell in cells)
    ]
    if len(unmeasured) == len(tables) and not compute:
        raise ConfigError(NOTHING_STORED)
    for name in unmeasured:
        why = "No cell is measured: no table is written." if compute else NOTHING_STORED
        print(f"experiment={name}: {why}", file=sys.stderr)
    if len(unmeasured) == len(tables):
        return [], {}
    files: list[Path] = []
    frames: dict[str, DataFrame] = {}
    for experiment, cells in tables:
        stem, figures = file_stem(experiment, config.scale), []
        if experiment.name not in unmeasured:
            figures = make_figure(experiment, config.scale, cells, models, folder, family, compute=compute)
            if experiment.figure is not None and not figures:
                for suffix in (".png", ".svg", ".csv"):  # of an earlier figure
                    (folder / f"{stem}-{experiment.figure}{suffix}").unlink(missing_ok=True)
        table = table_of(experiment, config.scale, cells, family, folder)  # it has numbers of the figure
        write_file(folder / f"{stem}.json", json_text(asdict(table)))
        frames[experiment.name] = typed_frame(table.records())
        if experiment.name in unmeasured:
            continue
        if cells and experiment.figure not in TABLES:
            write_rows(table.records(), folder / f"{stem}.csv")
            files.append(write_file(folder / f"{stem}.md", markdown(experiment, table)))
        files += figures
        name = folder_name(stem, digest=digest_of([replace(config, experiment=experiment.name)]))
        with open_logger(config, kind="experiment", name=name, group=config.experiment) as logger:
            logger.log_table(stem, frames[experiment.name])
            for figure in figures:
                if figure.suffix != ".md":
                    logger.log_figure(figure)
    return [*files, write_tables_page(folder)], frames
