"""`experiment=`: the tables of papers. What is not stored is run, past failed cells, then the tables are written."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.config.compose import Cell
from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError, exit_code
from moe_lab.reports.papers.cell import TableCell
from moe_lab.reports.papers.markdown import write_table
from moe_lab.reports.papers.spec import Experiment
from moe_lab.reports.papers.table_files import (
    file_stem,
    measured_before,
    merged_text,
    remove_figure,
    write_index,
)
from moe_lab.reports.terminal.results import print_outcomes
from moe_lab.results.folder import check_writable
from moe_lab.runs.experiments.cells import Prepared, compose_experiments, prepare_cells
from moe_lab.runs.experiments.places import placed, table_cells
from moe_lab.runs.grid import (
    NOTHING_STORED,
    Failure,
    beside_baselines,
    grid_exit_code,
    print_metrics,
    report_failures,
    run_all,
)
from moe_lab.runs.jobs import Job, by_model, distinct_runs
from moe_lab.runs.plan import print_plan, task_name

if TYPE_CHECKING:
    from moe_lab.models.pool import ModelPool
    from moe_lab.runs.run import Outcome, Run

Filled = list[tuple[Experiment, list[TableCell]]]
"""Experiments and the cells of their tables."""


def run_experiments(config: Config, cell: Cell) -> int:
    """Run, plan or report the experiments that `config.experiment` names; returns the exit code."""
    from moe_lab.models.pool import ModelPool

    composed = compose_experiments(config, cell)
    check_writable(config.output_dir)
    known: dict[str, Job] = {}
    prepared = [(each.experiment, prepare_cells(each, known)) for each in composed]
    asked = [
        (replace(experiment, merged=len(each.cells) - len(cells)), cells)
        for each, (experiment, cells) in zip(composed, prepared, strict=True)
    ]
    _tell_merged(asked)
    everything = [one for _, cells in asked for one in cells]
    jobs = by_model(list({id(one.job): one.job for one in everything if one.job is not None}.values()))
    errors = [one.error for one in everything if one.error is not None]
    refused: dict[str, list[Config]] = {}
    for one in everything:
        if one.error is not None:
            refused.setdefault(str(one.error), []).append(one.config)
    if config.mode == "plan":
        print_plan(jobs, refused)
        return 0
    for reason, configs in refused.items():
        print(f"Cannot run {', '.join(map(label, configs))}: {reason}", file=sys.stderr)
    models = ModelPool()
    outcomes, failures = _execute(jobs, models, only_stored=config.mode == "report")
    if outcomes:
        print_outcomes(beside_baselines(list(outcomes.values())))
        print_metrics(list(outcomes.values()))
    stored = outcomes | _stored_before(jobs, outcomes, models)
    _write(_filled(asked, config.scale, stored, failures), config, models)
    if config.mode == "report":
        return 0
    if errors and not jobs:
        return exit_code(errors[0])
    return grid_exit_code([*errors, *(failure.error for failure in failures)])


def label(config: Config) -> str:
    """`model-method-task` of a cell, for messages."""
    return f"{config.model.name}-{config.method.name}-{task_name(config)}"


def _tell_merged(asked: Sequence[tuple[Experiment, list[Prepared]]]) -> None:
    for experiment, _ in asked:
        if experiment.typed and experiment.merged:
            print(
                f"experiment={experiment.name}, {' '.join(experiment.typed)}:{merged_text(experiment)}",
                file=sys.stderr,
            )


def _execute(
    jobs: list[Job], models: ModelPool, only_stored: bool
) -> tuple[dict[str, Outcome], list[Failure]]:
    stored = [
        replace(job, runs=[_as_stored(run) for run in job.runs if run.done]) for job in jobs if job.runs
    ]
    outcomes, failures = run_all(stored if only_stored else jobs, models)
    report_failures(failures, alone=False)
    return {outcome.run.run_id: outcome for outcome in outcomes}, failures


def _as_stored(run: Run) -> Run:
    """A run of which nothing is computed, whatever is missing beside its results."""
    return replace(run, config=replace(run.config, mode="report", rerun=False))


def _stored_before(jobs: list[Job], outcomes: Mapping[str, Outcome], models: ModelPool) -> dict[str, Outcome]:
    """The stored results of runs that failed now, with rerun=true for example."""
    from moe_lab.runs.execute import execute

    return {
        run.run_id: execute(_as_stored(run), models)
        for run in distinct_runs(jobs)
        if run.run_id not in outcomes and run.done
    }


def _filled(
    asked: Sequence[tuple[Experiment, list[Prepared]]],
    scale: str,
    outcomes: Mapping[str, Outcome],
    failures: Sequence[Failure],
) -> Filled:
    """The cells of every table with what is measured of them."""
    filled = []
    for experiment, cells in asked:
        table, places = placed(experiment, cells)
        parts = (
            table_cells(table, scale, one, place, outcomes, failures)
            for one, place in zip(cells, places, strict=True)
        )
        filled.append((table, [part for cell in parts for part in cell]))
    return filled


def _write(filled: Filled, config: Config, models: ModelPool) -> None:
    """Write the tables and figures. A table stays as it is where nothing of it is measured now, or where it has numbers
    of a cell that failed; stderr says so.

    Raises ConfigError where mode=report finds nothing stored of any.
    """
    folder = Path(config.output_dir) / "tables"
    kept = {experiment.name: _why_kept(experiment, cells, config, folder) for experiment, cells in filled}
    if config.mode == "report" and all(kept.values()):
        raise ConfigError(NOTHING_STORED)
    for experiment, cells in filled:
        if reason := kept[experiment.name]:
            print(f"experiment={experiment.name}: {reason}", file=sys.stderr)
        else:
            _write_one(experiment, cells, config, models, folder)
    if not all(kept.values()):
        print(write_index(folder))


def _why_kept(experiment: Experiment, cells: Sequence[TableCell], config: Config, folder: Path) -> str | None:
    """Why the files of a table stay as they are; None where they are written."""
    if cells and not any(cell.results or cell.studies for cell in cells):
        if config.mode != "report":
            return "No cell is measured: no table is written."
        return f"{NOTHING_STORED} Its files stay as they are."
    table = folder / f"{file_stem(experiment, config.scale)}.csv"
    wanted = [cell for cell in cells if not cell.results and (cell.problem or config.mode != "report")]
    if lost := measured_before(table, wanted):
        names = "; ".join(cell.name for cell in lost)
        return f"{table.with_suffix('.md')} stays as it is: it has numbers of what has none now ({names})."
    return None


def _write_one(
    experiment: Experiment, cells: Sequence[TableCell], config: Config, models: ModelPool, folder: Path
) -> None:
    from moe_lab.reports.figure_kinds import TABLES
    from moe_lab.reports.loggers import open_logger
    from moe_lab.runs.experiments.figures import make_figure

    if cells and experiment.figure not in TABLES:
        print(write_table(experiment, config.scale, cells, folder))
    figures = make_figure(experiment, config.scale, cells, config, models, folder)
    if experiment.figure is not None and not figures:
        remove_figure(folder, file_stem(experiment, config.scale), experiment.figure)
    with open_logger(config, kind="experiment", name=experiment.name, group=experiment.name) as logger:
        for figure in figures:
            print(figure)
            if figure.suffix != ".md":
                logger.log_figure(figure)
