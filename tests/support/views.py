"""Views of stored results as the views of a command that has nothing else: its family
are the comparisons given."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from moe_lab.reports.pages import runs_page
from moe_lab.reports.papers import markdown as papers
from moe_lab.reports.papers.cell_table import p_values
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.reports.papers.table import Table, table_of
from moe_lab.reports.scores import CommandTable
from moe_lab.results import atomic, score_table
from moe_lab.results.atomic import json_text, write_file
from moe_lab.results.family import Family
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import SeedGroup

Cells = Sequence[TableCell]


def family_of(experiment: Experiment, cells: Cells) -> Family:
    return Family.of(p_values(experiment, cells))


def table(
    experiment: Experiment, scale: str, cells: Cells, folder: Path = Path("no-figures")
) -> Table:
    return table_of(experiment, scale, cells, family_of(experiment, cells), folder)


def markdown(
    experiment: Experiment, scale: str, cells: Cells, folder: Path = Path("no-figures")
) -> str:
    return papers.markdown(experiment, table(experiment, scale, cells, folder))


def csv_text(experiment: Experiment, cells: Cells) -> str:
    return atomic.csv_text(table(experiment, next(iter(experiment.scales)), cells).records())


def write_record(experiment: Experiment, scale: str, cells: Cells, folder: Path) -> Path:
    made = table(experiment, scale, cells, folder)
    return write_file(folder / f"{made.stem}.json", json_text(asdict(made)))


def write_runs_page(runs: Sequence[RunResult], path: Path) -> Path:
    family = score_table.family_of([SeedGroup([run]) for run in runs])
    return runs_page.write_runs_page(CommandTable(runs, family=family), path)
