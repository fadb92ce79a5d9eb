"""Views of stored results as the views of a command that has nothing else: its family are the comparisons given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moe_lab.reports.pages import record, runs_page
from moe_lab.reports.papers import files as csv_table
from moe_lab.reports.papers import markdown as papers
from moe_lab.reports.papers import ranking as ranked
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.reports.papers.stated import Stated
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import Family, ScoreTable, SeedGroup

Cells = Sequence[TableCell]


def family_of(experiment: Experiment, cells: Cells) -> Family:
    return Family.of(ranked.p_values(experiment, cells))


def markdown(experiment: Experiment, scale: str, cells: Cells, stated: Sequence[Stated] = ()) -> str:
    return papers.markdown(experiment, scale, cells, family_of(experiment, cells), stated)


def write_table(experiment: Experiment, scale: str, cells: Cells, folder: Path) -> Path:
    return papers.write_table(experiment, scale, cells, folder, family_of(experiment, cells))


def csv_text(experiment: Experiment, cells: Cells) -> str:
    return csv_table.cells_csv(experiment, cells, family_of(experiment, cells))


def table_record(
    experiment: Experiment, scale: str, cells: Cells, stated: Sequence[Stated] = ()
) -> record.TableRecord:
    return record.table_record(experiment, scale, cells, family_of(experiment, cells), stated)


def write_record(experiment: Experiment, scale: str, cells: Cells, folder: Path) -> Path:
    return record.write_record(experiment, scale, cells, folder, family_of(experiment, cells))


def ranking(experiment: Experiment, cells: Cells) -> list[ranked.Ranked]:
    return ranked.ranking(experiment, cells, family_of(experiment, cells))


def ranking_lines(experiment: Experiment, cells: Cells) -> list[str]:
    return ranked.ranking_lines(experiment, cells, family_of(experiment, cells))


def write_runs_page(runs: Sequence[RunResult], path: Path, groups: Sequence[SeedGroup] = ()) -> Path:
    of_seeds = {result.run_id for group in groups for result in group.results}
    alone = [SeedGroup([run]) for run in runs if run.run_id not in of_seeds]
    family = ScoreTable.of([*alone, *groups]).family
    return runs_page.write_runs_page(runs, path, family, groups)
