"""A paper's table with all of its rows, which CSV, data frame, Markdown, JSON and page show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moe_lab.reports.papers.averages import averages, averages_alone
from moe_lab.reports.papers.cells import TableCell, published_of
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.reports.papers.figure_kinds import TABLES
from moe_lab.reports.papers.files import file_stem, title
from moe_lab.reports.papers.published import Published
from moe_lab.reports.papers.rows import Row, State, with_state
from moe_lab.reports.papers.stated import stated_numbers
from moe_lab.results.family import Family
from moe_lab.results.model import BASE, RunResult, command_line, compared_names
from moe_lab.results.score import NO_SCORE, Score

PAPERS = {"roe": "RoE", "c3po": "C3PO", "moe_bench": "MoE-Bench"}
"""Names of the papers, by their folders of `experiments/`."""
OF_CELLS = [name for name in NO_SCORE.columns() if name not in ("model", "method", "task")]
"""Columns of a score in a table, which has coordinates in place of the others."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The origin of a run's numbers."""

    run_id: str
    command: str
    seed: int | None
    versions: dict[str, str | None]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with its rows, which is also the content of `<stem>.json`."""

    name: str
    stem: str
    title: str
    source: str
    scale: str
    command: str
    axes: list[str]
    figure: str | None
    averages_alone: bool
    """Whether Markdown and data frame show averages in place of the cells that they are of."""
    compared: list[str]
    """The runs that any cell is compared with, other than the base model's."""
    rows: list[Row]
    """The cells, then the averages."""
    stated: list[Row]
    """Numbers in the paper's text about the figure."""
    unmatched: list[Row]
    """Other published numbers without a cell."""
    runs: dict[str, Provenance]
    """The runs of the cells by id."""

    @property
    def paper(self) -> str:
        """The folder of the experiment: a key of PAPERS, or a folder of the user's."""
        return self.name.partition("/")[0]

    @property
    def of_paper(self) -> bool:
        """Whether this is a paper's table, or names published numbers."""
        return self.paper in PAPERS or any(row.published for row in self.page_rows)

    @property
    def page_rows(self) -> list[Row]:
        """The rows of the page, those of the table first; none for a table of settings."""
        if self.of_settings:
            return []
        return [*self.rows, *self.stated, *self.unmatched]

    @property
    def of_settings(self) -> bool:
        """Whether the table lists settings and has no cells."""
        return self.figure in TABLES

    @property
    def shown(self) -> list[Row]:
        """The rows of the Markdown file."""
        if not self.averages_alone:
            return self.rows
        return [row for row in self.rows if row.average or row.of_training]

    def records(self) -> list[dict[str, object]]:
        """The rows of CSV file and data frame: one per cell or average, and compared run.

        Coordinates of the cell, the columns of its score (`Score.columns`), `published` (the
        paper's number, a fraction where the score is one) with the `place` in the paper and a
        `mark` where it is doubtful, `state`, `reason`, and the ids of its `runs` and `studies`.
        """
        records = []
        for row in self.rows:
            origin = {
                **_columns_of_published(row.published),
                "state": str(row.state),
                "reason": row.problem or row.reason or None,
                "runs": " ".join(row.runs) or row.run_id,
                "studies": " ".join(row.studies) or None,
            }
            for score in [row.score, *row.compared.values()]:
                records.append(row.coordinates | _columns_of_score(score) | origin)
        return records


def _columns_of_published(published: Published | None) -> dict[str, object]:
    """`published`, `place` and `mark`; all None without a published number."""
    if published is None:
        return dict.fromkeys(("published", "place", "mark"))
    return {
        "published": published.fraction,
        "place": published.place,
        "mark": published.mark,
    }


def _columns_of_score(score: Score | None) -> dict[str, object]:
    """The columns OF_CELLS; all None without a score."""
    columns = {} if score is None else score.columns()
    return {name: columns.get(name) for name in OF_CELLS}


def table_of(
    experiment: Experiment, scale: str, cells: Sequence[TableCell], family: Family, folder: Path
) -> Table:
    """The table of an experiment's cells.

    The numbers in the paper's text are taken from its figure in `folder`.
    """
    names_paper = experiment.name.partition("/")[0] in PAPERS or experiment.paper
    unpublished = State.NOT_PUBLISHED if names_paper else State.MEASURED
    rows = []
    for cell in [*cells, *averages(experiment, cells)]:
        row = _row_of(experiment, cell, family)
        rows.append(with_state(row, scale, unpublished))
    stated = stated_numbers(experiment, scale, folder)
    results: list[RunResult] = []
    for cell in cells:
        results += cell.results
    runs = {}
    for result in results:
        runs[result.run_id] = Provenance(
            run_id=result.run_id, command=result.command, seed=result.seed, versions=result.versions
        )

    typed = [f"experiment={experiment.name}", f"scale={scale}", *experiment.typed]
    return Table(
        name=experiment.name,
        stem=file_stem(experiment, scale),
        title=title(experiment, scale),
        source=experiment.source,
        scale=scale,
        command=command_line(typed, experiment.config_dirs),
        axes=experiment.keys,
        figure=experiment.figure,
        averages_alone=averages_alone(experiment, cells),
        compared=compared_names(results),
        rows=rows,
        stated=stated,
        unmatched=_unmatched(experiment, scale, [*rows, *stated]),
        runs=runs,
    )


def _row_of(experiment: Experiment, cell: TableCell, family: Family) -> Row:
    """The row of a cell, before its state is known."""
    scores = cell.scores(family)
    return Row(
        coordinates=cell.coordinates,
        metric=cell.metric,
        shows=cell.shows(),
        average=bool(cell.parts),
        score=scores.pop(BASE, None),
        compared=scores,
        published=published_of(experiment, cell),
        problem=cell.problem,
        run_id=cell.run_id,
        runs=[result.run_id for result in cell.results],
        studies=[study.name for study in cell.studies],
    )


def _unmatched(experiment: Experiment, scale: str, rows: Sequence[Row]) -> list[Row]:
    """Rows of the published numbers that no other row has."""
    matched = {id(row.published) for row in rows}
    unmatched = []
    for published in experiment.paper:
        # two equal numbers are two numbers
        if id(published) not in matched:
            row = Row(
                coordinates=published.cell,
                published=published,
                state=State.NOT_AT_SCALE,
                reason=f"scale {scale} has no such cell",
            )
            unmatched.append(row)
    return unmatched
