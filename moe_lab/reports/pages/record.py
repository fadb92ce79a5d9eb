"""A paper's table as data: `<stem>.json` next to its Markdown. The pages are written from it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from moe_lab.reports.pages.page import UNEXPECTED, left_out, number
from moe_lab.reports.papers.cells import (
    Place,
    TableCell,
    averages,
    compared_names,
    corrected_scores,
    place_of,
    published_of,
)
from moe_lab.reports.papers.experiment import TABLES, Experiment, Published
from moe_lab.reports.papers.files import file_stem, title
from moe_lab.reports.papers.ranking import Ranked, ranking
from moe_lab.reports.papers.stated import Stated, stated_numbers
from moe_lab.results.atomic import json_text, write_file
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import Family
from moe_lab.results.scores import Score
from moe_lab.results.shapes import typed
from moe_lab.results.stored_files import warn_once, whole_mapping

RECORD_VERSION = [3, *(one.name for one in fields(Score))]
"""The version of the format, and the fields of a score."""

PAPERS = {"roe": "RoE", "c3po": "C3PO", "moe_bench": "MoE-Bench"}
"""Names of the papers, by their folders of `experiments/`."""


@dataclass(frozen=True, kw_only=True)
class CellRecord:
    """A cell of a table, an average, or a number that the paper's text states for a figure."""

    coordinates: dict[str, str]
    metric: str = ""
    shows: str | None = None
    """The metric with its unit, and whether lower is better."""
    lower_is_better: bool = False
    average: bool = False
    score: Score | None = None
    compared: dict[str, Score] = field(default_factory=dict)
    """The comparisons with other runs than the base model's, by name."""
    published: Published | None = None
    problem: str | None = None
    """Why the cell failed."""
    absent: str | None = None
    """Why a stated number is not measured."""
    runs: list[str] = field(default_factory=list)
    """Run ids."""
    studies: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RunRecord:
    """The provenance of a run's numbers."""

    run_id: str
    command: str
    seed: int | None
    versions: dict[str, str | None]
    documents: dict[str, str]
    """Document numbers by task, as `ranges` writes them."""

    @classmethod
    def of(cls, run: RunResult) -> RunRecord:
        documents = {task: ranges(numbers) for task, numbers in run.samples.items()}
        return cls(run.run_id, command(run.overrides), run.seed, dict(run.versions), documents)


@dataclass(frozen=True, kw_only=True)
class TableRecord:
    """The content of a table on a page."""

    version: list[Any]
    name: str
    paper: str
    stem: str
    title: str
    source: str
    scale: str
    command: str
    axes: list[str]
    figure: str | None
    of_settings: bool
    """Whether the table lists settings and has no cells."""
    compared: list[str]
    """The runs that any cell is compared with, other than the base model's."""
    cells: list[CellRecord]
    """The cells, then the averages, then the numbers in the paper's text about the figure."""
    ranking: list[Ranked]
    unmatched: list[Published]
    """Published numbers without a cell."""
    runs: dict[str, RunRecord]
    """The runs of the cells by id."""

    @property
    def of_paper(self) -> bool:
        """Whether this is a paper's table, or names published numbers."""
        return self.paper in PAPERS or bool(self.unmatched) or any(cell.published for cell in self.cells)

    def to_json(self) -> dict[str, object]:
        content = asdict(self)
        for cell in content["cells"]:
            if cell["absent"] is None:
                del cell["absent"]
        return content


def write_record(
    experiment: Experiment, scale: str, cells: Sequence[TableCell], folder: Path, family: Family
) -> Path:
    """Write `<stem>.json` (`file_stem`) of a table and return its path. Raises ResultsError."""
    record = table_record(experiment, scale, cells, family, stated_numbers(experiment, scale, folder))
    return write_file(record_path(experiment, scale, folder), json_text(record))


def record_path(experiment: Experiment, scale: str, folder: Path) -> Path:
    return folder / f"{file_stem(experiment, scale)}.json"


def read_records(folder: Path) -> list[TableRecord]:
    """The records of all tables in a folder, by file name.

    Damaged ones, and those of another version, are named on stderr and left out.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        content = whole_mapping(path)
        if content is None:
            continue
        if not _readable(content.get("version")):
            warn_once(f"{path} is of another version. Its table's command with mode=report writes it again.")
        elif content.get("stem") != path.stem:  # the page reads the files with this stem
            warn_once(f"{path} is the record of another table. It is left out.")
        else:
            try:
                found.append(typed(TableRecord, content))
            except UNEXPECTED as error:
                warn_once(f"{left_out(path.with_suffix(''), error)}. It is left out.")
    return found


def _readable(version: Any) -> bool:
    """Whether a record has this format; an older one may lack fields of a score."""
    return isinstance(version, list) and version[:1] == RECORD_VERSION[:1] and {*version} <= {*RECORD_VERSION}


def has_numbers(path: Path) -> bool:
    """Whether a record exists and has a measured cell."""
    return path.exists() and any(cell.get("score") for cell in (whole_mapping(path) or {}).get("cells", []))


def table_record(
    experiment: Experiment,
    scale: str,
    cells: Sequence[TableCell],
    family: Family,
    stated: Sequence[Stated] = (),
) -> TableRecord:
    """The record of a table from its cells."""
    others = compared_names(cells)
    shown = [cell for cell in [*cells, *averages(experiment, cells)] if _applies(cell)]
    scores = corrected_scores(shown, family)
    matched = [id(published_of(experiment, cell)) for cell in shown] + [id(each.published) for each in stated]
    return TableRecord(
        version=RECORD_VERSION,
        name=experiment.name,
        paper=experiment.name.partition("/")[0],
        stem=file_stem(experiment, scale),
        title=title(experiment, scale),
        source=experiment.source,
        scale=scale,
        command=command(
            [f"experiment={experiment.name}", f"scale={scale}", *experiment.typed], experiment.config_dirs
        ),
        axes=experiment.keys,
        figure=experiment.figure,
        of_settings=experiment.figure in TABLES,
        compared=others,
        cells=[_cell(experiment, cell, others, scores) for cell in shown] + [*map(_stated, stated)],
        ranking=ranking(experiment, cells, family),
        unmatched=[each for each in experiment.paper if id(each) not in matched],
        runs={each.run_id: RunRecord.of(each) for cell in cells for each in cell.results},
    )


def command(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> str:
    """The command line of some overrides, quoted for a shell; `config_dirs` are the folders of `--config-dir`."""
    flags = [part for folder in config_dirs for part in ("--config-dir", folder)]
    return shlex.join(["python", "-m", "moe_lab", *flags, *overrides])


def ranges(numbers: Sequence[int]) -> str:
    """Document numbers as `0-4, 7`."""
    parts: list[list[int]] = []
    for each in sorted(numbers):
        if parts and each == parts[-1][1] + 1:
            parts[-1][1] = each
        else:
            parts.append([each, each])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _applies(cell: TableCell) -> bool:
    """False for a number of a training that its design does not have, such as the leak of token choice."""
    score = cell.score() if cell.of_training else None
    return score is None or score.value is not None


def _cell(
    experiment: Experiment, cell: TableCell, others: Sequence[str], scores: Mapping[Place, Score]
) -> CellRecord:
    score = scores.get(place_of(cell))
    lower = cell.results and score and cell.results[0].lower_is_better(score.task, score.metric)
    return CellRecord(
        coordinates=cell.coordinates,
        metric=cell.metric,
        shows=cell.shows(),
        lower_is_better=bool(lower),
        average=bool(cell.parts),
        score=score,
        compared={other: scores[place] for other in others if (place := place_of(cell, other)) in scores},
        published=published_of(experiment, cell),
        problem=cell.problem,
        runs=[each.run_id for each in cell.results],
        studies=[study.name for study in cell.studies],
    )


def _stated(each: Stated) -> CellRecord:
    """A cell for a number in the paper's text, with the same quantity of the figure's data as its score."""
    places = dict(zip(("model", "task"), each.where.split(", "), strict=False)) if each.where else {}
    score = Score(model="", method="", task="", metric=each.quantity, run_id="", value=each.measured)
    return CellRecord(
        coordinates=(places or each.published.cell) | {"quantity": each.quantity},
        metric=each.quantity,
        score=None if each.measured is None else score,
        published=each.published,
        absent=each.why_absent,
    )


# Whether a measured number agrees with the published one, and why a cell is empty or cannot be compared

AGREES = "agrees"
DISAGREES = "disagrees"
NOT_COMPARABLE = "not comparable"
NOT_PUBLISHED = "no published number"
MEASURED = "measured"
FAILED = "failed"
NOT_RUN = "not run"
NOT_AT_SCALE = "not at this scale"
STATES = {
    AGREES: "The published number lies within the 95% interval of the measured one.",
    DISAGREES: "The published number lies outside the 95% interval of the measured one.",
    NOT_COMPARABLE: "Measured, but at another scale, on part of the documents, or without an interval.",
    NOT_PUBLISHED: "Measured; the paper prints no number for it.",
    MEASURED: "A number is stored for the cell.",
    FAILED: "The cell was tried and failed.",
    NOT_RUN: "Nothing is stored for the cell.",
    NOT_AT_SCALE: "The paper prints a number; the scale has no such cell.",
}
"""The meaning of each state."""
STAND_INS = "scale tiny uses the embedded model and the toy tasks"


def state_of(cell: CellRecord, scale: str) -> tuple[str, str]:
    """The state of a cell of a table at a scale, and the reason for it (empty if the state needs none)."""
    score, published = cell.score, cell.published
    if score is None or score.value is None:
        if cell.problem:
            return FAILED, cell.problem
        if cell.absent:
            return NOT_RUN, cell.absent
        if score is not None:
            return FAILED, "the run has no such metric"
        missing = "not all cells of the average are measured" if cell.average else "nothing is stored for it"
        return NOT_RUN, missing
    if published is None:
        return NOT_PUBLISHED, ""
    if score.interval is None or scale == "tiny" or "PARTIAL" in score.marks:
        return NOT_COMPARABLE, _why_not(score, scale)
    low, high = score.interval
    return (AGREES if low <= published.fraction <= high else DISAGREES), published.mark or ""


def _why_not(score: Score, scale: str) -> str:
    """Why a measured number cannot be compared with the paper's."""
    if scale == "tiny":
        return STAND_INS
    return "measured on part of the documents" if "PARTIAL" in score.marks else "it has no interval"


# The lines of a paper's table on the page: cells, and published numbers without a cell


@dataclass(frozen=True)
class Row:
    """A line of a table: a cell, or a published number without one."""

    cell: CellRecord
    state: str
    reason: str

    @property
    def score(self) -> Score | None:
        return self.cell.score

    @property
    def off(self) -> float | None:
        """Measured minus published, where the two can be compared."""
        if self.state not in (AGREES, DISAGREES) or self.score is None or self.cell.published is None:
            return None
        return (self.score.value or 0.0) - self.cell.published.fraction


def rows_of(record: TableRecord) -> list[Row]:
    """The lines of a table: its cells, then published numbers without a cell. A table of settings has none."""
    if record.of_settings:
        return []
    rows = [Row(cell, *state_of(cell, record.scale)) for cell in record.cells]
    if not record.of_paper:
        rows = [replace(row, state=MEASURED) if row.state == NOT_PUBLISHED else row for row in rows]
    missing = f"scale {record.scale} has no such cell"
    absent = (CellRecord(coordinates=each.cell, published=each) for each in record.unmatched)
    return [*rows, *(Row(cell, NOT_AT_SCALE, missing) for cell in absent)]


def axes_of(record: TableRecord, rows: Sequence[Row]) -> list[str]:
    """The axes on which any line has a coordinate. Published numbers may have more axes than the table."""
    own = [key for row in rows for key in row.cell.coordinates]
    return [
        axis
        for axis in dict.fromkeys([*record.axes, *own])
        if any(row.cell.coordinates.get(axis, "-") != "-" for row in rows)
    ]


def constant_axes(axes: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """The axes on which several lines all have the same coordinate. Pages show them last."""
    places = {axis: {row.cell.coordinates.get(axis) for row in rows} for axis in axes}
    return [axis for axis in axes if len(rows) > 1 and len(places[axis]) == 1]


def columns_of(rows: Sequence[Row]) -> set[str]:
    """The shown columns: those in which any line has a number."""
    columns = {
        name
        for row in rows
        for name in ("n", "difference", "flips")
        if row.score is not None and getattr(row.score, name) is not None
    }
    if any(row.cell.published for row in rows):
        columns.add("published")
    if any(row.off is not None for row in rows):
        columns.add("off")
    return columns


def _intervals(score: Score) -> str:
    """The interval over documents, then that over seeds."""
    named = {"": score.interval, "seeds ": score.seed_interval}
    return ", ".join(f"{name}{number(one[0])} to {number(one[1])}" for name, one in named.items() if one)


def latex_row(row: Row, axes: Sequence[str]) -> dict[str, str]:
    """A line of the LaTeX table of a measured row."""
    score, published = row.score, row.cell.published
    assert score is not None
    return {
        **{axis.rpartition(".")[2]: row.cell.coordinates.get(axis, "-") for axis in axes},
        "measured": number(score.value),
        "95% interval": _intervals(score),
        "documents": "" if score.n is None else str(score.n),
        "difference to base": number(score.difference, True),
        "published": "" if published is None else f"{published.fraction:.4g}",
    }
