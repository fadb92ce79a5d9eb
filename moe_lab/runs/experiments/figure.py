"""The figure of an experiment: from its cells to a PNG and its CSV."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from moe_lab.models.memory import ModelPool
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.reports.papers.figure_kinds import FIGURES, TABLES
from moe_lab.reports.papers.files import file_stem, title
from moe_lab.reports.papers.settings_tables import reference_rows, write_settings
from moe_lab.results.family import Family
from moe_lab.runs.experiments.equivalent import equivalent_rows
from moe_lab.runs.experiments.settings_rows import recipe_rows, setup_rows


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
    """Draw the experiment's figure from the cells that have results; returns its files.

    These are a PNG and a CSV; for a kind of TABLES a Markdown and a CSV. Nothing is written where
    no cell has what the figure shows. With `compute=False` nothing is measured: RoE's Figure 5
    shows what is stored.
    """
    kind = experiment.figure
    if kind is None:
        return []
    if kind in TABLES:
        return _write_settings_table(experiment, scale, cells, folder)
    data_name, module = FIGURES[kind]
    data = _data_of(data_name, CellTable(experiment, cells, family), models, compute=compute)
    if not data:
        return []
    draw = getattr(import_module(f"moe_lab.reports.figures.{module}"), f"draw_{kind}")
    stem = f"{file_stem(experiment, scale)}-{kind}"
    return draw(data).save(folder, stem, title(experiment, scale))


def _write_settings_table(
    experiment: Experiment, scale: str, cells: Sequence[TableCell], folder: Path
) -> list[Path]:
    """Write the rows of a kind of TABLES; returns the files, none without rows."""
    if experiment.figure == "setup":
        rows = setup_rows(experiment)
    elif experiment.figure == "recipe":
        rows = recipe_rows(experiment)
    else:
        rows = reference_rows(experiment, cells=cells)
    if not rows:
        return []
    problems = [f"{cell.name}: {cell.problem}" for cell in cells if cell.problem]
    return write_settings(experiment, scale, rows, folder, problems)


def _data_of(name: str, table: CellTable, models: ModelPool, *, compute: bool) -> Any:
    """What the figure is drawn from, by its name in `papers/figure_kinds.py: DATA`."""
    if name == "cells":
        return table
    if name == "studies":
        from moe_lab.reports.figures.stored_studies import studies_of

        return studies_of(table.cells)
    if name == "traces":
        from moe_lab.reports.figures.stored_traces import traces_of

        return traces_of(table.cells)
    return equivalent_rows(table.cells, models, compute=compute)
