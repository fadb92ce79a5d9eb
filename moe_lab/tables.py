"""`experiment=`: the tables of papers. What is not stored is run, past failed cells, then the tables are written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.cells import Prepared, compose_experiments, coordinate, prepare_cells
from moe_lab.compose import Cell
from moe_lab.config import Config
from moe_lab.errors import ConfigError
from moe_lab.grid import (
    NOTHING_STORED,
    Failure,
    beside_baselines,
    grid_exit_code,
    print_metrics,
    report_failures,
    run_all,
)
from moe_lab.jobs import Job, by_model
from moe_lab.plan import print_plan, task_name
from moe_lab.reports.experiment import MEASURE, Experiment
from moe_lab.reports.expert_rows import EXPERT
from moe_lab.reports.paper_table import write_index, write_table
from moe_lab.reports.table_cell import TableCell
from moe_lab.reports.terminal import print_outcomes
from moe_lab.results.expert_metrics import stored_metrics
from moe_lab.results.store import check_writable
from moe_lab.results.summaries import summary

if TYPE_CHECKING:
    from moe_lab.models.pool import ModelPool
    from moe_lab.run import Outcome, Run


def run_experiments(config: Config, cell: Cell) -> int:
    """Run, plan or report the experiments that `config.experiment` names; returns the exit code."""
    from moe_lab.models.pool import ModelPool

    composed = compose_experiments(config, cell)
    check_writable(config.output_dir)
    known: dict[str, Job] = {}
    prepared = {each.experiment.name: prepare_cells(each, known) for each in composed}
    everything = [one for cells in prepared.values() for one in cells]
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
    experiments = [each.experiment for each in composed]
    tables: dict[str, list[TableCell]] = {}
    for each in experiments:
        parts = (_table_cells(each, config.scale, one, outcomes, failures) for one in prepared[each.name])
        tables[each.name] = [part for cell in parts for part in cell]
    if config.mode == "report":
        experiments = _with_results(experiments, tables)
    _write(experiments, tables, config, models)
    if config.mode == "report":
        return 0
    return grid_exit_code([*errors, *(failure.error for failure in failures)])


def label(config: Config) -> str:
    """`model-method-task` of a cell, for messages."""
    return f"{config.model.name}-{config.method.name}-{task_name(config)}"


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


def _with_results(experiments: Sequence[Experiment], tables: dict[str, list[TableCell]]) -> list[Experiment]:
    """The experiments of which a run or study is stored, or that need none; the others are named on stderr.

    Raises ConfigError where that is all of them.
    """
    kept = [
        each
        for each in experiments
        if not tables[each.name] or any(cell.results or cell.studies for cell in tables[each.name])
    ]
    if not kept:
        raise ConfigError(NOTHING_STORED)
    for each in experiments:
        if each not in kept:
            print(f"experiment={each.name}: {NOTHING_STORED} Its files stay as they are.", file=sys.stderr)
    return kept


def _write(
    experiments: Sequence[Experiment], tables: dict[str, list[TableCell]], config: Config, models: ModelPool
) -> None:
    from moe_lab.figures import TABLES, make_figure
    from moe_lab.loggers import open_logger

    folder = Path(config.output_dir) / "tables"
    for experiment in experiments:
        cells = tables[experiment.name]
        if cells and experiment.figure not in TABLES:
            print(write_table(experiment, config.scale, cells, folder))
        figures = make_figure(experiment, config.scale, cells, config, models, folder)
        with open_logger(config, kind="experiment", name=experiment.name, group=experiment.name) as logger:
            for figure in figures:
                print(figure)
                if figure.suffix != ".md":
                    logger.log_figure(figure)
    print(write_index(folder))


def _table_cells(
    experiment: Experiment,
    scale: str,
    one: Prepared,
    outcomes: dict[str, Outcome],
    failures: Sequence[Failure],
) -> list[TableCell]:
    """One cell for each of the experiment's metrics; none for expert metrics that this one does not ask for."""
    runs = one.job.runs if one.job is not None else []
    ids = [run.run_id for run in runs]
    studies = [study.folder for study in one.job.studies] if one.job is not None else []
    names = [one.job.name] if one.job is not None and not runs else []
    failed = (f.error for f in failures if f.run_id in ids or (f.run_id is None and f.name in names))
    error = one.error or next(failed, None)
    ended = [outcomes[run_id] for run_id in ids if run_id in outcomes]
    place = {key: coordinate(one, key) for key in experiment.keys if key != MEASURE}
    whole = TableCell(
        coordinates=place,
        run_id=ids[0] if ids else None,
        results=[outcome.results for outcome in ended],
        expert=[_expert_metrics(outcome) for outcome in ended],
        summary=summary(ended) if len(ended) > 1 else None,
        studies=[folder for folder in studies if (folder / "best.yaml").exists()],
        problem=None if error is None else " ".join(str(error).split()),
        config=one.config,
        folder=runs[0].folder if runs else None,
    )
    several = MEASURE in experiment.keys
    return [
        replace(whole, metric=metric, coordinates=place | ({MEASURE: name} if several else {}))
        for name, metric in experiment.metrics(scale).items()
        if one.config.metrics != "none" or not metric.startswith(EXPERT)
    ]


def _expert_metrics(outcome: Outcome) -> dict[str, Any] | None:
    run = outcome.run
    return None if run.config.metrics == "none" else stored_metrics(run.folder, run.run_id, run.facts.commit)
