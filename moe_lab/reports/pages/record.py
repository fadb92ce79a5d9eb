"""A paper's table as data: `<stem>.json` next to its Markdown, from which pages are made."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from moe_lab.reports.figure_kinds import TABLES
from moe_lab.reports.pages.page import number
from moe_lab.reports.papers.cells import TableCell, averages, compared_names, published_of
from moe_lab.reports.papers.experiment import Experiment, Published
from moe_lab.reports.papers.files import file_stem, title
from moe_lab.reports.papers.ranking import Ranked, ranking, ranks
from moe_lab.reports.papers.stated import Stated, stated_numbers
from moe_lab.reports.papers.told_apart import Place, corrected_scores, place_of
from moe_lab.results.atomic import write_json, writing
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import Family
from moe_lab.results.scores import Score
from moe_lab.results.stored_files import warn_once, whole_mapping

# A paper's table as data: `<stem>.json` next to its Markdown, from which pages are made

RECORD_VERSION = [3, *(field.name for field in fields(Score))]
"""The version of the form, and the fields of a score."""


def write_record(
    experiment: Experiment, scale: str, cells: Sequence[TableCell], folder: Path, family: Family
) -> Path:
    """Write `<stem>.json` (`file_stem`) of a table and return its path. Raises ResultsError."""
    path = record_path(experiment, scale, folder)
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(
        path, table_record(experiment, scale, cells, family, stated_numbers(experiment, scale, folder))
    )
    return path


def record_path(experiment: Experiment, scale: str, folder: Path) -> Path:
    return folder / f"{file_stem(experiment, scale)}.json"


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The records of all tables in a folder, by file name.

    Damaged ones, and those of another version, are named on stderr and left out.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        record = whole_mapping(path)
        if record is not None and not _readable(record.get("version")):
            warn_once(f"{path} is of another version. Its table's command with mode=report writes it again.")
        elif record is not None and record.get("stem") != path.stem:  # the page reads the files of this name
            warn_once(f"{path} is the record of another table. It is left out.")
        elif record is not None:
            found.append(record)
    return found


def _readable(version: Any) -> bool:
    """Whether a record has this form; an older one may lack fields of a score."""
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
) -> dict[str, Any]:
    """All that a page says of a table.

    `cells` have coordinates, the score as `scores.Score`, the published number and the reason for an empty cell;
    averages come after them, and last what the paper's text states for the figure. `ranking` has pre-trained designs by
    held-out loss, `unmatched` published numbers without a cell, `runs` the runs of the cells by id.
    """
    others = compared_names(cells)
    shown = [cell for cell in [*cells, *averages(experiment, cells)] if _applies(cell)]
    scores = corrected_scores(shown, family)
    matched = [id(published_of(experiment, cell)) for cell in shown] + [id(each.published) for each in stated]
    return {
        "version": RECORD_VERSION,
        "name": experiment.name,
        "paper": experiment.name.partition("/")[0],
        "stem": file_stem(experiment, scale),
        "title": title(experiment, scale),
        "source": experiment.source,
        "scale": scale,
        "command": command(
            [f"experiment={experiment.name}", f"scale={scale}", *experiment.typed], experiment.config_dirs
        ),
        "axes": experiment.keys,
        "figure": experiment.figure,
        "of_settings": experiment.figure in TABLES,
        "compared": others,
        "cells": [_cell(experiment, cell, others, scores) for cell in shown] + [*map(_stated, stated)],
        "ranking": _ranking(experiment, cells, family),
        "unmatched": [_published(each) for each in experiment.paper if id(each) not in matched],
        "runs": {each.run_id: run_record(each) for cell in cells for each in cell.results},
    }


def command(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> str:
    """The command line of some overrides, quoted for a shell; `config_dirs` are the folders of `--config-dir`."""
    flags = [part for folder in config_dirs for part in ("--config-dir", folder)]
    return shlex.join(["python", "-m", "moe_lab", *flags, *overrides])


def run_record(run: RunResult) -> dict[str, Any]:
    """Where a run's numbers come from."""
    return {
        "run_id": run.run_id,
        "command": command(run.overrides),
        "seed": run.seed,
        "versions": run.versions,
        "documents": {task: ranges(numbers) for task, numbers in run.samples.items()},
    }


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
    """False for a number of a training that its design does not have: the leak of token choice, say."""
    score = cell.score() if cell.of_training else None
    return score is None or score.value is not None


def _cell(
    experiment: Experiment, cell: TableCell, others: Sequence[str], scores: Mapping[Place, Score]
) -> dict[str, Any]:
    score, published = scores.get(place_of(cell)), published_of(experiment, cell)
    return {
        "coordinates": cell.coordinates,
        "metric": cell.metric,
        "shows": cell.shows(),
        "lower_is_better": bool(
            cell.results and score and cell.results[0].lower_is_better(score.task, score.metric)
        ),
        "average": bool(cell.parts),
        "score": None if score is None else asdict(score),
        "compared": {
            other: asdict(scores[place]) for other in others if (place := place_of(cell, other)) in scores
        },
        "published": None if published is None else _published(published),
        "problem": cell.problem,
        "runs": [each.run_id for each in cell.results],
        "studies": [study.name for study in cell.studies],
    }


def _stated(each: Stated) -> dict[str, Any]:
    """A cell of a number that the paper's text states, with the figure's own quantity as its score."""
    places = dict(zip(("model", "task"), each.where.split(", "), strict=False)) if each.where else {}
    score = Score(model="", method="", task="", metric=each.quantity, run_id="", value=each.measured)
    return {
        "coordinates": (places or each.published.cell) | {"quantity": each.quantity},
        "metric": each.quantity,
        "shows": None,
        "lower_is_better": False,
        "average": False,
        "score": None if each.measured is None else asdict(score),
        "compared": {},
        "published": _published(each.published),
        "problem": None,
        "absent": each.why_absent,
        "runs": [],
        "studies": [],
    }


def _ranking(experiment: Experiment, cells: Sequence[TableCell], family: Family) -> list[dict[str, Any]]:
    ranked = ranking(experiment, cells, family)
    return [_ranked(one, rank) for one, rank in zip(ranked, ranks(ranked), strict=True)]


def _ranked(one: Ranked, rank: int) -> dict[str, Any]:
    """A line of the ranking by held-out loss."""
    return {
        "rank": rank,
        "design": one.name,
        "loss": asdict(one.loss),
        "difference": one.difference,
        "interval": one.interval,
        "p": one.p,
        "accuracy": None if one.accuracy is None else asdict(one.accuracy),
        "chance": one.chance,
    }


def _published(published: Published) -> dict[str, Any]:
    return asdict(published) | {"fraction": published.fraction}


# Whether a measured number agrees with the published one, and why a cell is empty or cannot be compared

AGREES = "agrees"
DISAGREES = "disagrees"
NOT_COMPARABLE = "not comparable"
NOT_PUBLISHED = "no published number"
FAILED = "failed"
NOT_RUN = "not run"
NOT_AT_SCALE = "not at this scale"
STATES = {
    AGREES: "The published number lies within the 95% interval of the measured one.",
    DISAGREES: "The published number lies outside the 95% interval of the measured one.",
    NOT_COMPARABLE: "Measured, but at another scale, on part of the documents, or without an interval.",
    NOT_PUBLISHED: "Measured; the paper prints no number for it.",
    FAILED: "The cell was tried and failed.",
    NOT_RUN: "Nothing is stored for the cell.",
    NOT_AT_SCALE: "The paper prints a number; the scale has no such cell.",
}
"""What each state means."""
STAND_INS = "at scale tiny the embedded model and the toy tasks stand in"


def state_of(cell: Mapping[str, Any], scale: str) -> tuple[str, str]:
    """The state of a cell and the reason for it, empty where the state says it all.

    Args:
        cell: a cell of a table's record (`record.py`).
        scale: the scale of its table.
    """
    score, published = cell["score"], cell["published"]
    if score is None or score["value"] is None:
        if cell["problem"]:
            return FAILED, cell["problem"]
        if cell.get("absent"):
            return NOT_RUN, cell["absent"]
        if score is not None:
            return FAILED, "the run has no such metric"
        missing = (
            "not all cells of the average are measured" if cell["average"] else "nothing is stored for it"
        )
        return NOT_RUN, missing
    if published is None:
        return NOT_PUBLISHED, ""
    if reason := _why_not(score, scale):
        return NOT_COMPARABLE, reason
    low, high = score["interval"]
    return (AGREES if low <= published["fraction"] <= high else DISAGREES), published["mark"] or ""


def _why_not(score: Mapping[str, Any], scale: str) -> str:
    """Why a measured number cannot be compared with the paper's; empty if it can."""
    if scale == "tiny":
        return STAND_INS
    if "PARTIAL" in score["marks"]:
        return "measured on part of the documents"
    return "" if score["interval"] else "it has no interval"


# The lines of a paper's table on the page: cells, and published numbers without a cell


@dataclass(frozen=True)
class Row:
    """A line of a table: a cell, or a published number without one."""

    cell: dict[str, Any]
    state: str
    reason: str

    @property
    def score(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.cell["score"]
        return found

    @property
    def off(self) -> float | None:
        """Measured minus published, where the two can be compared."""
        if self.state not in (AGREES, DISAGREES) or self.score is None:
            return None
        value: float = self.score["value"] - self.cell["published"]["fraction"]
        return value


def rows_of(record: dict[str, Any]) -> list[Row]:
    """The lines of a table: its cells, then published numbers without a cell. A table of settings has none."""
    if record["of_settings"]:
        return []
    rows = [Row(cell, *state_of(cell, record["scale"])) for cell in record["cells"]]
    return rows + [_unmatched(record, published) for published in record["unmatched"]]


def axes_of(record: dict[str, Any], rows: Sequence[Row]) -> list[str]:
    """The axes on which any line has a place; published numbers may have more than the table."""
    own = [key for row in rows for key in row.cell["coordinates"]]
    return [
        axis
        for axis in dict.fromkeys([*record["axes"], *own])
        if any(row.cell["coordinates"].get(axis, "-") != "-" for row in rows)
    ]


def columns_of(rows: Sequence[Row]) -> set[str]:
    """The columns that are shown: those in which any line has a number."""
    scores = [row.score for row in rows if row.score is not None]
    names = {name for score in scores for name in ("n", "difference", "flips") if score[name] is not None}
    published = {"published"} if any(row.cell["published"] for row in rows) else set()
    return names | published | ({"off"} if any(row.off is not None for row in rows) else set())


def _unmatched(record: dict[str, Any], published: dict[str, Any]) -> Row:
    cell = {"coordinates": published["cell"], "score": None, "published": published, "compared": {}}
    return Row(cell, NOT_AT_SCALE, f"scale {record['scale']} has no such cell")


def _intervals(score: dict[str, Any]) -> str:
    """The interval over documents, then that over seeds."""
    texts = {
        name: " to ".join(map(number, score[key]))
        for name, key in (("", "interval"), ("seeds ", "seed_interval"))
        if score[key] is not None
    }
    return ", ".join(f"{name}{text}" for name, text in texts.items())


def latex_row(row: Row, axes: Sequence[str]) -> dict[str, str]:
    """A line of the LaTeX table of a measured row."""
    score, published = row.score, row.cell["published"]
    assert score is not None
    return {
        **{axis.rpartition(".")[2]: row.cell["coordinates"].get(axis, "-") for axis in axes},
        "measured": number(score["value"]),
        "95% interval": _intervals(score),
        "documents": "" if score["n"] is None else str(score["n"]),
        "difference to base": number(score["difference"], True),
        "published": "" if published is None else f"{published['fraction']:.4g}",
    }
