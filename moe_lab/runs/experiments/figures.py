"""The figure of an experiment: from its cells to a PNG and the CSV behind it.

A kind of figure is a module of its name in `moe_lab/reports/figures/`, whose `write_<kind>` draws what INPUTS gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config
from moe_lab.reports.figures.stored_study import StoredStudy, read_study
from moe_lab.reports.figures.stored_traces import read_traces
from moe_lab.reports.papers.cell import TableCell
from moe_lab.reports.papers.recipe_table import write_recipe
from moe_lab.reports.papers.reference_table import write_references
from moe_lab.reports.papers.setup_table import write_setup
from moe_lab.reports.papers.spec import Experiment
from moe_lab.reports.papers.table_files import file_stem, title
from moe_lab.runs.experiments.figure_rows import equivalent_rows, recipe_rows, setup_rows

if TYPE_CHECKING:
    from moe_lab.models.pool import ModelPool

TITLE_WIDTH = 90
"""Characters of a line above a figure."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a figure is made of."""

    experiment: Experiment
    scale: str
    cells: Sequence[TableCell]
    config: Config
    models: ModelPool
    folder: Path


def make_figure(
    experiment: Experiment,
    scale: str,
    cells: Sequence[TableCell],
    config: Config,
    models: ModelPool,
    folder: Path,
) -> list[Path]:
    """Draw the experiment's figure from the cells that have results; returns the paths of PNG and CSV.

    Nothing is drawn where no cell has what the figure shows. With mode=report nothing is measured either: RoE's
    Figure 5 then shows what is stored.
    """
    kind = experiment.figure
    if kind is None:
        return []
    asked = Asked(
        experiment=experiment, scale=scale, cells=cells, config=config, models=models, folder=folder
    )
    if kind in TABLES:
        return TABLES[kind](asked)
    shown = INPUTS[kind](asked)
    if not shown[0]:
        return []
    write = getattr(import_module(f"moe_lab.reports.figures.{kind}"), f"write_{kind}")
    heading = "\n".join(wrap(title(experiment, scale), TITLE_WIDTH))
    return write(*shown, folder, f"{file_stem(experiment, scale)}-{kind}", heading)


def studies_of(cells: Sequence[TableCell]) -> list[StoredStudy]:
    """The studies of the cells, none twice; those without a complete trial are left out."""
    folders = dict.fromkeys(folder for cell in cells for folder in cell.studies)
    return [study for study in map(read_study, folders) if study.complete]


def _studies(asked: Asked) -> tuple[Any, ...]:
    return (studies_of(asked.cells),)


def _cells(asked: Asked) -> tuple[Any, ...]:
    return (asked.cells,)


def _comparison(asked: Asked) -> tuple[Any, ...]:
    return asked.cells, asked.experiment


def _traces(asked: Asked) -> tuple[Any, ...]:
    found = [
        read_traces(cell.folder, cell.results[0]) for cell in asked.cells if cell.folder and cell.results
    ]
    return ([run for run in found if run is not None],)


def _equivalent(asked: Asked) -> tuple[Any, ...]:
    return (equivalent_rows(asked.cells, asked.models, asked.config.mode),)


def _setup(asked: Asked) -> list[Path]:
    return write_setup(asked.experiment, setup_rows(asked.experiment), asked.folder, asked.scale)


def _recipe(asked: Asked) -> list[Path]:
    return write_recipe(asked.experiment, recipe_rows(asked.experiment), asked.folder, asked.scale)


def _references(asked: Asked) -> list[Path]:
    return write_references(asked.experiment, asked.cells, asked.folder, asked.scale)


INPUTS: dict[str, Callable[[Asked], tuple[Any, ...]]] = {
    "accuracy": _cells,
    "activation": _traces,
    "control": _cells,
    "equivalent": _equivalent,
    "flops": _cells,
    "forest": _comparison,
    "heatmap": _studies,
    "history": _studies,
    "epochs": _cells,
    "lines": _comparison,
    "overhead": _cells,
    "retained": _traces,
    "sample": _traces,
    "schedules": _comparison,
    "steps": _traces,
    "sweep": _studies,
}
"""What each kind of figure draws; without a first part there is nothing to draw."""
TABLES: dict[str, Callable[[Asked], list[Path]]] = {
    "recipe": _recipe,
    "references": _references,
    "setup": _setup,
}
"""Kinds that are tables of their own, in the place of the one of cells."""
