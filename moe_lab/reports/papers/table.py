"""A paper's table as rows, which CSV file, data frame, Markdown, JSON and page show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Self

from moe_lab.reports.papers.cells import TableCell, averages, averages_alone, published_of
from moe_lab.reports.papers.experiment import TABLES, Experiment, Published
from moe_lab.reports.papers.files import file_stem, title
from moe_lab.reports.papers.metrics import TRAINING
from moe_lab.results.family import Family
from moe_lab.results.model import BASE, command_line, compared_names
from moe_lab.results.score import NO_SCORE, Score

PAPERS = {"roe": "RoE", "c3po": "C3PO", "moe_bench": "MoE-Bench"}
"""Names of the papers, by their folders of `experiments/`."""


class State(StrEnum):
    """Whether a cell has a number that agrees with the published one, and the meaning of each state."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        state = str.__new__(cls, value)
        state._value_, state.meaning = value, meaning
        return state

    AGREES = "agrees", "The published number lies within the 95% interval of the measured one."
    DISAGREES = (
        "disagrees",
        "The published number lies outside the 95% interval of the measured one.",
    )
    NOT_COMPARABLE = (
        "not comparable",
        "Measured, but at another scale, on part of the documents, or without an interval.",
    )
    NOT_PUBLISHED = "no published number", "Measured; the paper prints no number for it."
    MEASURED = "measured", "A number is stored for the cell."
    FAILED = "failed", "The cell was tried and failed."
    NOT_RUN = "not run", "Nothing is stored for the cell."
    NOT_AT_SCALE = "not at this scale", "The paper prints a number; the scale has no such cell."


OF_CELLS = [name for name in NO_SCORE.columns() if name not in ("model", "method", "task")]
"""Columns of a score in a table, which has coordinates in place of the others."""
NOTHING_STORED = "nothing is stored for it"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A cell of a table, an average, or a number of the paper without a cell."""

    coordinates: dict[str, str]
    metric: str = ""
    shows: str | None = None
    """The metric with its unit, and whether lower is better."""
    average: bool = False
    score: Score | None = None
    compared: dict[str, Score] = field(default_factory=dict)
    """The comparisons with other runs than the base model's, by name."""
    published: Published | None = None
    problem: str | None = None
    """Why the cell failed."""
    run_id: str | None = None
    """The run of its first seed, also of a cell without a result."""
    runs: list[str] = field(default_factory=list)
    studies: list[str] = field(default_factory=list)
    state: State = State.NOT_RUN
    reason: str = ""
    """The reason for the state; empty where the state needs none."""

    @property
    def of_training(self) -> bool:
        return self.metric.startswith(TRAINING)

    @property
    def off(self) -> float | None:
        """Measured minus published, where the two can be compared."""
        if (
            self.state not in (State.AGREES, State.DISAGREES)
            or self.score is None
            or self.published is None
        ):
            return None
        return (self.score.value or 0.0) - self.published.fraction


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
        return self.name.partition("/")[0]

    @property
    def of_paper(self) -> bool:
        """Whether this is a paper's table, or names published numbers."""
        return self.paper in PAPERS or any(row.published for row in self.every)

    @property
    def every(self) -> list[Row]:
        """The rows of the page."""
        return [] if self.of_settings else [*self.rows, *self.stated, *self.unmatched]

    @property
    def of_settings(self) -> bool:
        """Whether the table lists settings and has no cells."""
        return self.figure in TABLES

    @property
    def shown(self) -> list[Row]:
        """The rows of the Markdown file."""
        return [
            row for row in self.rows if row.average or row.of_training or not self.averages_alone
        ]

    def records(self) -> list[dict[str, object]]:
        """The rows of CSV file and data frame: one per cell, average and run that it is compared with.

        Coordinates of the cell, the columns of its score (`Score.columns`), `published` (the paper's number, a fraction
        where the score is one) with the `place` in the paper and a `mark` where it is doubtful, `state`, `reason`,
        and the ids of its `runs` and `studies`.
        """
        found = []
        for row in self.rows:
            paper = row.published
            more = {
                "published": paper and paper.fraction,
                "place": paper and paper.place,
                "mark": paper and paper.mark,
                "state": str(row.state),
                "reason": row.problem or row.reason or None,
                "runs": " ".join(row.runs) or row.run_id,
                "studies": " ".join(row.studies) or None,
            }
            for score in [row.score, *row.compared.values()]:
                columns = {} if score is None else score.columns()
                found.append(
                    row.coordinates | {name: columns.get(name) for name in OF_CELLS} | more
                )
        return found


def table_of(
    experiment: Experiment, scale: str, cells: Sequence[TableCell], family: Family, folder: Path
) -> Table:
    """The table of an experiment's cells; the numbers in the paper's text are taken from its figure in `folder`."""
    of_paper = experiment.name.partition("/")[0] in PAPERS or experiment.paper
    unpublished = State.NOT_PUBLISHED if of_paper else State.MEASURED
    rows = []
    for cell in [*cells, *averages(experiment, cells)]:
        scores = cell.scores(family)
        row = Row(
            coordinates=cell.coordinates,
            metric=cell.metric,
            shows=cell.shows(),
            average=bool(cell.parts),
            score=scores.pop(BASE, None),
            compared=scores,
            published=published_of(experiment, cell),
            problem=cell.problem,
            run_id=cell.run_id,
            runs=[each.run_id for each in cell.results],
            studies=[study.name for study in cell.studies],
        )
        rows.append(with_state(row, scale, unpublished))
    stated = stated_numbers(experiment, scale, folder)
    matched = [id(row.published) for row in [*rows, *stated]]
    missing = f"scale {scale} has no such cell"
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
        compared=compared_names(result for cell in cells for result in cell.results),
        rows=rows,
        stated=stated,
        unmatched=[
            Row(coordinates=one.cell, published=one, state=State.NOT_AT_SCALE, reason=missing)
            for one in experiment.paper
            if id(one) not in matched
        ],
        runs={
            run.run_id: Provenance(
                run_id=run.run_id, command=run.command, seed=run.seed, versions=run.versions
            )
            for cell in cells
            for run in cell.results
        },
    )


def with_state(row: Row, scale: str, unpublished: State = State.NOT_PUBLISHED) -> Row:
    """The row with its state and the reason for it.

    Args:
        unpublished: the state of a measured number next to which there is no published one.
    """
    score, published = row.score, row.published
    if score is None or score.value is None:
        failed = bool(row.problem) or score is not None
        missing = "not all cells of the average are measured" if row.average else NOTHING_STORED
        reason = row.problem or "the run has no such metric" if failed else row.reason or missing
        return replace(row, state=State.FAILED if failed else State.NOT_RUN, reason=reason)
    if published is None:
        return replace(row, state=unpublished)
    reasons = {
        "scale tiny uses the embedded model and the toy tasks": scale == "tiny",
        "measured on part of the documents": "PARTIAL" in score.marks,
        "it has no interval": score.interval is None,
    }
    for reason, holds in reasons.items():
        if holds:
            return replace(row, state=State.NOT_COMPARABLE, reason=reason)
    low, high = score.interval or (0.0, 0.0)
    state = State.AGREES if low <= published.fraction <= high else State.DISAGREES
    return replace(row, state=state, reason=published.mark or "")


# Numbers in a paper's text about a figure, next to the same quantity of the figure's data here


def stated_numbers(experiment: Experiment, scale: str, folder: Path) -> list[Row]:
    """The stated numbers (`Published.data`), each with model and task, and its value in the figure in `folder`.

    Without the figure's data a number has the coordinates of the paper.
    """
    from pandas import read_csv

    published = [each for each in experiment.paper if each.data is not None]
    file = folder / f"{file_stem(experiment, scale)}-{experiment.figure}.csv"
    if not published or not file.is_file():
        rows = [
            Row(coordinates=each.cell, metric=each.cell["quantity"], published=each)
            for each in published
        ]
        return [with_state(row, scale) for row in rows]
    rows = []
    for each, ((model, task), found) in product(
        published, read_csv(file).groupby(["model", "task"], sort=False)
    ):
        where, _, value = str(each.data).partition("=>")
        known = found.query(where).eval(value).dropna()
        name = each.cell["quantity"]
        row = Row(
            coordinates={"model": model, "task": task, "quantity": name},
            metric=name,
            score=replace(NO_SCORE, value=float(known.iloc[0])) if len(known) else None,
            published=each,
            reason="" if len(known) else "the figure's data lack it",
        )
        rows.append(with_state(row, scale))
    return rows
