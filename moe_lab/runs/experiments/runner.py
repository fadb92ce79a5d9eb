"""The tables of `experiment=`: their cells from stored results, and their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message
from moe_lab.errors import ConfigError
from moe_lab.models.memory import ModelPool
from moe_lab.reports.frames import typed_frame
from moe_lab.reports.loggers import open_logger
from moe_lab.reports.pages.tables_page import write_tables_page
from moe_lab.reports.papers.cell_table import p_values
from moe_lab.reports.papers.figure_kinds import TABLES
from moe_lab.reports.papers.files import file_stem
from moe_lab.reports.papers.markdown import markdown
from moe_lab.reports.papers.table import table_of
from moe_lab.reports.scores import CommandTable
from moe_lab.results.atomic import json_text, write_file, write_rows
from moe_lab.results.family import Family
from moe_lab.results.folder import why_not_writable
from moe_lab.results.names import folder_name
from moe_lab.results.score import ComparisonKey
from moe_lab.results.score_table import p_values_of
from moe_lab.runs.experiments.cells import NOTHING_STORED, PreparedExperiment
from moe_lab.runs.experiments.figure import make_figure
from moe_lab.runs.experiments.table_cells import FilledExperiment, filled
from moe_lab.runs.jobs import digest_of
from moe_lab.runs.outcomes import (
    command_table,
    controls_of,
    measured_p_values,
    stored_outcomes,
)
from moe_lab.runs.results import Results

if TYPE_CHECKING:
    from pandas import DataFrame


def with_tables(
    finished: Results,
    experiments: Sequence[PreparedExperiment],
    config: Config,
    models: ModelPool,
    *,
    compute: bool = True,
) -> Results:
    """The same results with their tables and figures, after these are written.

    A table of which no cell is measured is only listed on the page. Where the output folder cannot
    be written, the tables have no files. Raises ConfigError with `compute=False` if nothing is
    stored.
    """
    tables = _filled_tables(finished, experiments, config.scale, compute=compute)
    refused: list[BaseException] = []
    if compute:
        refused = _errors_of(experiments)
    finished = replace(finished, refused=refused, table=_with_family(finished, tables))
    missing = [table.experiment.name for table in tables if not table.is_measured]
    if not compute and len(missing) == len(tables):
        raise ConfigError(NOTHING_STORED)
    for name in missing:
        why = "No cell is measured: no table is written." if compute else NOTHING_STORED
        print_message(f"experiment={name}: {why}")
    if len(missing) == len(tables):
        return finished
    reason = why_not_writable(config.output_dir)
    if reason is not None:
        print_message(f"{reason}: no table and no figure is written.")
        return replace(finished, tables=_frames(tables, config, finished.table.family))
    files: list[Path] = []
    frames = {}
    for table in tables:
        written = _write_table(table, config, models, finished.table.family, compute=compute)
        files += written.files
        frames[table.experiment.name] = written.frame
    files.append(write_tables_page(_folder(config)))
    return replace(finished, tables=frames, files=files)


def _filled_tables(
    finished: Results, experiments: Sequence[PreparedExperiment], scale: str, *, compute: bool
) -> list[FilledExperiment]:
    """The tables' cells with the results of the command and those stored before."""
    outcomes = [*finished.outcomes]
    if compute:  # also the stored result of a run that failed with rerun=true
        outcomes = [*stored_outcomes(finished.jobs), *outcomes]
    by_id = {outcome.run.run_id: outcome for outcome in outcomes}
    tables = []
    for experiment, cells in experiments:
        tables.append(filled(experiment, scale, cells, by_id, finished.failures))
    return tables


def _errors_of(experiments: Sequence[PreparedExperiment]) -> list[BaseException]:
    """The errors of the cells that cannot run."""
    errors = []
    for prepared in experiments:
        for cell in prepared.cells:
            if cell.error is not None:
                errors.append(cell.error)
    return errors


def _with_family(finished: Results, tables: Sequence[FilledExperiment]) -> CommandTable:
    """The scores of the command. Its comparisons and those of the tables are one family."""
    table = CommandTable([])
    if finished.outcomes:
        table = command_table(finished.outcomes, finished.jobs)
    controls = controls_of(finished.outcomes, table.groups)
    uncorrected: dict[ComparisonKey, float | None] = dict(p_values_of(controls))
    for experiment, cells in tables:
        uncorrected |= p_values(experiment, cells)
    uncorrected |= measured_p_values(finished.outcomes)
    not_asked = {control.results[0].run_id for control in controls}
    return replace(table, family=Family.of(uncorrected, not_asked))


def _folder(config: Config) -> Path:
    """The folder of the tables' files."""
    return Path(config.output_dir) / "tables"


def _frames(
    tables: Sequence[FilledExperiment], config: Config, family: Family
) -> dict[str, DataFrame]:
    """The tables as data frames, by name. Nothing is written."""
    frames = {}
    for experiment, cells in tables:
        table = table_of(experiment, config.scale, cells, family, _folder(config))
        frames[experiment.name] = typed_frame(table.records())
    return frames


@dataclass(frozen=True)
class WrittenTable:
    """A table of an experiment, after it is written."""

    frame: DataFrame
    files: list[Path]
    """What the command prints. The table's JSON is for the page alone."""


def _write_table(
    filled_experiment: FilledExperiment,
    config: Config,
    models: ModelPool,
    family: Family,
    *,
    compute: bool,
) -> WrittenTable:
    """Write and log a table and its figure.

    If no cell is measured, only the table's JSON is written, which the page reads.
    """
    experiment, cells = filled_experiment
    folder = _folder(config)
    stem = file_stem(experiment, config.scale)
    figures: list[Path] = []
    if filled_experiment.is_measured:
        figures = make_figure(
            experiment, config.scale, cells, models, folder, family, compute=compute
        )
        if experiment.figure is not None and not figures:
            _remove_figure(folder, f"{stem}-{experiment.figure}")
    # `table_of` reads the figure's CSV
    table = table_of(experiment, config.scale, cells, family, folder)
    write_file(folder / f"{stem}.json", json_text(asdict(table)))
    frame = typed_frame(table.records())
    if not filled_experiment.is_measured:
        return WrittenTable(frame, [])
    files: list[Path] = []
    figure_is_the_table = experiment.figure in TABLES
    if cells and not figure_is_the_table:
        write_rows(table.records(), folder / f"{stem}.csv")
        files.append(write_file(folder / f"{stem}.md", markdown(experiment, table)))
    files += figures
    name = folder_name(stem, digest=digest_of([replace(config, experiment=experiment.name)]))
    with open_logger(config, kind="experiment", name=name, group=config.experiment) as logger:
        logger.log_table(stem, frame)
        for figure in figures:
            if figure.suffix != ".md":
                logger.log_figure(figure)
    return WrittenTable(frame, files)


def _remove_figure(folder: Path, stem: str) -> None:
    """Remove the files of an earlier figure."""
    for suffix in (".png", ".svg", ".csv"):
        (folder / f"{stem}{suffix}").unlink(missing_ok=True)
