"""The figure of an experiment: from its cells to a PNG and the CSV behind it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config
from moe_lab.reports.figure_kinds import FIGURES, TABLES
from moe_lab.reports.figures.stored_study import studies_of
from moe_lab.reports.figures.stored_traces import traces_of
from moe_lab.reports.papers.cell import TableCell
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.reports.papers.reference_set_table import write_references
from moe_lab.reports.papers.setup_table import write_recipe, write_setup
from moe_lab.reports.papers.table_files import file_stem, title
from moe_lab.runs.experiments.figure_rows import equivalent_rows, recipe_rows, setup_rows

if TYPE_CHECKING:
    from moe_lab.models.pool import ModelPool


def make_figure(
    experiment: Experiment,
    scale: str,
    cells: Sequence[TableCell],
    config: Config,
    models: ModelPool,
    folder: Path,
) -> list[Path]:
    """Draw the experiment's figure from the cells that have results; returns the paths of PNG and CSV.

    A kind of TABLES writes its Markdown and CSV instead. Nothing is written where no cell has what the figure shows.
    With mode=report nothing is measured: RoE's Figure 5 shows what is stored.
    """
    kind = experiment.figure
    if kind is None:
        return []
    if kind in TABLES:
        return _write_table(experiment, scale, cells, folder)
    write = getattr(import_module(f"moe_lab.reports.figures.{kind}"), f"write_{kind}")
    data = _data(FIGURES[kind], experiment, cells, config, models)
    return write(data, folder, f"{file_stem(experiment, scale)}-{kind}", title(experiment, scale))


def _data(
    name: str, experiment: Experiment, cells: Sequence[TableCell], config: Config, models: ModelPool
) -> Any:
    """The data of a figure, by its name in FIGURES."""
    if name == "cells":
        return CellTable(experiment, cells)
    if name == "studies":
        return studies_of(cells)
    if name == "traces":
        return traces_of(cells)
    return equivalent_rows(cells, models, config.mode)


def _write_table(experiment: Experiment, scale: str, cells: Sequence[TableCell], folder: Path) -> list[Path]:
    if experiment.figure == "references":
        return write_references(experiment, cells, folder, scale)
    if experiment.figure == "setup":
        return write_setup(experiment, setup_rows(experiment), folder, scale)
    return write_recipe(experiment, recipe_rows(experiment), folder, scale)
