"""The tables and figures of `experiment=`: their cells from stored results, and their files."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.models.memory import ModelPool
from moe_lab.reports.frames import typed_frame
from moe_lab.reports.loggers import open_logger
from moe_lab.reports.pages.tables_page import write_tables_page
from moe_lab.reports.papers.cell_table import CellTable, p_values
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.reports.papers.figure_kinds import FIGURES, TABLES
from moe_lab.reports.papers.files import file_stem, title
from moe_lab.reports.papers.markdown import markdown
from moe_lab.reports.papers.settings_tables import reference_rows, write_settings
from moe_lab.reports.papers.table import table_of
from moe_lab.reports.scores import CommandTable
from moe_lab.results.atomic import json_text, write_file, write_rows
from moe_lab.results.family import Family
from moe_lab.results.folder import why_not_writable
from moe_lab.results.names import folder_name
from moe_lab.results.score_table import p_values_of
from moe_lab.runs.experiments.cells import NOTHING_STORED, Experiments, filled
from moe_lab.runs.experiments.equivalent import equivalent_rows
from moe_lab.runs.jobs import digest_of
from moe_lab.runs.results import (
    Results,
    command_table,
    controls_of,
    measured_p_values,
    stored_outcomes,
)
from moe_lab.runs.tuning.presets import preset


def with_tables(
    finished: Results,
    experiments: Experiments,
    config: Config,
    models: ModelPool,
    *,
    compute: bool = True,
) -> Results:
    """The same with its tables and figures, after they are written.

    A table of which no cell is measured is only listed on the page. A folder that cannot be written is read: its tables
    have no files then. Raises ConfigError with `compute=False` if nothing is stored.
    """
    jobs, outcomes = finished.jobs, finished.outcomes
    stored = stored_outcomes(jobs) if compute else []  # also of a run that failed with rerun=true
    by_id = {outcome.run.run_id: outcome for outcome in [*stored, *outcomes]}
    tables = [
        filled(one, config.scale, cells, by_id, finished.failures) for one, cells in experiments
    ]
    of_command = command_table(outcomes, jobs) if outcomes else CommandTable([])
    controls = controls_of(outcomes, of_command.groups)
    in_tables = {key: p for table in tables for key, p in p_values(*table).items()}
    family = Family.of(
        {**p_values_of(controls), **in_tables, **measured_p_values(outcomes)},
        {control.results[0].run_id for control in controls},
    )
    finished = replace(
        finished,
        refused=[
            one.error
            for _, cells in experiments
            for one in cells
            if one.error is not None and compute
        ],
        table=replace(of_command, family=family),
    )
    folder = Path(config.output_dir) / "tables"
    measured = {
        one.name: not cells or any(cell.results or cell.studies for cell in cells)
        for one, cells in tables
    }
    if not compute and not any(measured.values()):
        raise ConfigError(NOTHING_STORED)
    for name in (name for name, is_measured in measured.items() if not is_measured):
        why = "No cell is measured: no table is written." if compute else NOTHING_STORED
        print_message(f"experiment={name}: {why}")
    if not any(measured.values()):
        return finished
    reason = why_not_writable(config.output_dir)
    if reason is not None:
        print_message(f"{reason}: no table and no figure is written.")
        shown = [
            table_of(experiment, config.scale, cells, family, folder)
            for experiment, cells in tables
        ]
        names = [experiment.name for experiment, _ in tables]
        frames = {
            name: typed_frame(table.records()) for name, table in zip(names, shown, strict=True)
        }
        return replace(finished, tables=frames)
    files: list[Path] = []
    frames = {}
    for experiment, cells in tables:
        stem, figures = file_stem(experiment, config.scale), []
        if measured[experiment.name]:
            figures = make_figure(
                experiment, config.scale, cells, models, folder, family, compute=compute
            )
            if experiment.figure is not None and not figures:
                for suffix in (".png", ".svg", ".csv"):  # of an earlier figure
                    (folder / f"{stem}-{experiment.figure}{suffix}").unlink(missing_ok=True)
        # it has numbers of the figure
        table = table_of(experiment, config.scale, cells, family, folder)
        write_file(folder / f"{stem}.json", json_text(asdict(table)))
        frames[experiment.name] = typed_frame(table.records())
        if not measured[experiment.name]:
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
    return replace(finished, tables=frames, files=[*files, write_tables_page(folder)])


# Rows of tables from presets (Table 1 of RoE and of MoE-Bench)

NAMES = {"metric": ("accuracy", "perplexity"), "cache": ("clean", "standard")}
"""The meanings of 0 and 1 in the published numbers of Table 1 of RoE."""


def setup_rows(experiment: Experiment) -> list[dict[str, Any]]:
    """RoE's Table 1: the default of tuning for every published number."""
    rows = []
    for published in experiment.paper:
        where, names = published.cell, NAMES.get(published.cell["quantity"])
        own = getattr(preset(where["category"], where["model"]), where["quantity"])
        value = names[int(published.value)] if names else published.value
        rows.append({**where, "value": own, "published": value, "place": published.place})
    return rows


def recipe_rows(experiment: Experiment) -> list[dict[str, Any]]:
    """MoE-Bench's Table 1: the default of the method's key for every published number."""
    rows = []
    for published in experiment.paper:
        name, key = published.cell["method"], published.cell["setting"]
        method: Any = get_method(name)
        own = method.Config(name=name, dataset="lima").recipe()[key]
        said = {"published": published.value, "place": published.place}
        rows.append({"setting": f"method.{key}", "value": own, **said})
    return rows


# The figure of an experiment: from its cells to a PNG and its CSV


def make_figure(
    experiment: Experiment,
    scale: str,
    cells: Sequence[TableCell],
    models: ModelPool,
    folder: Path,
    family: Family,
    *,
    compute: bool = True,
) -> list[Path]:
    """Draw the experiment's figure from the cells that have results; returns the paths of PNG and CSV.

    A kind of TABLES writes its Markdown and CSV instead. Nothing is written where no cell has what the figure shows.
    With `compute=False` nothing is measured: RoE's Figure 5 shows what is stored.
    """
    kind = experiment.figure
    if kind is None:
        return []
    if kind in TABLES:
        rows = {"setup": setup_rows, "recipe": recipe_rows}.get(
            kind, partial(reference_rows, cells=cells)
        )(experiment)
        problems = [f"{cell.name}: {cell.problem}" for cell in cells if cell.problem]
        return write_settings(experiment, scale, rows, folder, problems) if rows else []
    name, module = FIGURES[kind]
    data: Any = CellTable(experiment, cells, family)
    if name == "studies":
        from moe_lab.reports.figures.stored_studies import studies_of

        data = studies_of(data.cells)
    elif name == "traces":
        from moe_lab.reports.figures.stored_traces import traces_of

        data = traces_of(data.cells)
    elif name != "cells":
        data = equivalent_rows(data.cells, models, compute=compute)
    if not data:
        return []
    drawing = getattr(import_module(f"moe_lab.reports.figures.{module}"), f"draw_{kind}")(data)
    return drawing.save(folder, f"{file_stem(experiment, scale)}-{kind}", title(experiment, scale))
